"""
A gradient under test
=====================

The verifier compares a hand-written backward with five-point differences. Here the gradient of a Cauchy kernel with
respect to its bandwidth lacks the inner derivative of the chain rule. The picture shows the error of a difference at
each step: truncation on the right, rounding on the left, and the mistake, which no step makes smaller.
"""

import matplotlib.pyplot as plt
import numpy as np

from dufs_core.gradcheck import check_gradient

D = np.random.default_rng(0).uniform(0, 4, (5, 5))


def f(b):
    return float((1 / (1 + D / b)).sum())


def right(b):
    return np.sum(D / (b + D) ** 2)


def wrong(b):
    return np.sum(D * b / (b + D) ** 2)


print(check_gradient(f, right, [1.5], name="right").message())
print(check_gradient(f, wrong, [1.5], name="wrong").message().splitlines()[0])
steps = np.geomspace(1e-10, 1, 60)
slope = np.array([(f(1.5 - 2 * h) - 8 * f(1.5 - h) + 8 * f(1.5 + h) - f(1.5 + 2 * h)) / (12 * h) for h in steps / 2])
for label, value in (("right", right(1.5)), ("wrong", wrong(1.5))):
    plt.loglog(steps / 2, np.maximum(abs(slope / value - 1), 1e-17), label=label)
plt.axhline(1e-9, color="k", ls="--", lw=0.8, label="tolerance")
plt.gca().set(xlabel="step", ylabel="relative difference")
plt.legend()
plt.show()
