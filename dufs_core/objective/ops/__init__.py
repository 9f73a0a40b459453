"""One differentiable operation per file, forward directly above backward.

Every operation works on NumPy and CuPy arrays alike through the backend it is given, accepts leading batch axes (one
matrix per draw), writes to none of its inputs, and returns fresh arrays. ``forward`` returns the value and a ``Saved``
tuple of what backward needs; ``backward(bk, saved, d_value)`` returns the derivative of a scalar with respect to each
differentiable input, given its derivative with respect to the value.
"""
