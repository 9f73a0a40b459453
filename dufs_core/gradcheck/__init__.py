"""Does a hand-written backward belong to its function? A checker for any callables on NumPy or CuPy arrays.

    from dufs_core.gradcheck import assert_gradient
    assert_gradient(function, backward, inputs)        # raises GradientError with a readable report

`check_gradient` compares with five-point differences, `check_complex_step` with a complex step, `check_random`
draws examples until one is free of kinks. `dufs_core.gradcheck.suite.registry` lists this library's own operations
and engines, `dufs_core.gradcheck.suite.examples` draws the awkward inputs they are tried on.
"""

from dufs_core.gradcheck.check import assert_gradient, check_complex_step, check_gradient, check_random
from dufs_core.gradcheck.report import Comparison, GradientError, Report

__all__ = [
    "Comparison",
    "GradientError",
    "Report",
    "assert_gradient",
    "check_complex_step",
    "check_gradient",
    "check_random",
]
