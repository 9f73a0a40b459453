"""
Two moons among nuisance columns
================================

Two of twenty columns carry two half moons, the others are noise. A graph of all columns does not show the moons; a
graph of the few columns that belong together does. Every column competes with shuffled copies of itself, and those that
beat their copies are selected. The labels only colour the picture.
"""

import matplotlib.pyplot as plt

from dufs_core import DUFS
from dufs_core.datasets import two_moons

problem = two_moons(n_samples=100, n_features=20, noise=0.1, random_state=0)
selector = DUFS(random_state=0).fit(problem.X)
print("selected:", selector.support_.nonzero()[0])
print(f"at a false discovery rate of {selector.fdr}; the smallest q-value is {selector.q_values_.min():.2f}")

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
left.scatter(*problem.X[:, 7:9].T, c=problem.labels, cmap="coolwarm", s=14)
left.set(title="two of the nuisance columns", xlabel="column 7", ylabel="column 8")
middle.scatter(*selector.transform(problem.X).T, c=problem.labels, cmap="coolwarm", s=14)
middle.set(title="the selected columns", xlabel="column 0", ylabel="column 1")
right.plot(selector.decoy_evidence_.T, "_", color="0.6")
right.plot(selector.evidence_, "o", color="C3", ms=4)
right.set(title="evidence: columns (red), their copies", xlabel="column", ylabel="-log chance")
plt.show()
