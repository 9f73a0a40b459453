"""What is verified: every operation, every chain, every engine, each listed once.

An operation is a line of the tables in operations.py, an engine a line in chain.py. The suite, the command, the tests
and the mutation run then cover it; a test fails while one is missing.
"""

from __future__ import annotations

from dufs_core.gradcheck.suite.chain import CHAINS, ENGINES
from dufs_core.gradcheck.suite.entries import OPS, Engine, Example, Operation
from dufs_core.gradcheck.suite.operations import OPERATIONS

__all__ = ["OPS", "Engine", "Example", "Operation", "engines", "operations"]


def operations() -> list[Operation]:
    """Every operation and then every chain, in order."""
    return [*OPERATIONS, *CHAINS]


def engines() -> dict[str, Engine]:
    """Every engine by name."""
    return ENGINES
