"""Tests of columns against chance: decoys, permutation tests, HSIC of pairs."""
