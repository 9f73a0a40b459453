"""
The graph, before and after
===========================

What the selection does to the random walk on the rows: with all forty columns no eigenvalue but the first is near 1,
and the eigenvectors show nothing; with the selected ones the two moons come apart. Labels only colour the picture.
"""

import matplotlib.pyplot as plt

from dufs_core import DUFS, plotting, report
from dufs_core.datasets import two_moons

problem = two_moons(n_features=40, random_state=0)
selector = DUFS(random_state=0).fit(problem.X)
print(report(selector, problem.X))

fig, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
plotting.spectrum(selector, problem.X, axes[0])
plotting.embedding(selector, problem.X, problem.labels, axes[1:])
plt.show()
