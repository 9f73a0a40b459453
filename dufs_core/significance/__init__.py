"""Whether columns belong to structure or to chance: decoys, permutation tests, dependence of pairs."""
