"""Does a hand-written backward belong to its function? A checker for any callables on arrays; it needs NumPy only.

    from dufs_core.gradcheck import assert_gradient
    assert_gradient(function, backward, inputs)        # raises GradientError with a readable report

`check_gradient` compares with five-point differences, `check_complex_step` with a complex step, `check_batched` a batch
with a loop; `check_random` draws examples until one is free of kinks. `adapters` takes functions of PyTorch, JAX and
any library with DLPack; `strategies` draws awkward points for hypothesis. This library's own operations and engines,
and how they are checked, are in `suite`, which nothing here imports.
"""

from dufs_core.gradcheck.arguments import Constant
from dufs_core.gradcheck.batches import check_batched
from dufs_core.gradcheck.check import assert_gradient, check_complex_step, check_gradient, check_random
from dufs_core.gradcheck.report import Comparison, GradientError, Report

__all__ = [
    "Comparison",
    "Constant",
    "GradientError",
    "Report",
    "assert_gradient",
    "check_batched",
    "check_complex_step",
    "check_gradient",
    "check_random",
]
