"""
Before and after
================

The pictures show how the selection changes the graph: the largest eigenvalues of the random walk, the samples in its
second and third eigenvector, and, since the answer is known here, precision and recall of the ranking.
"""

import matplotlib.pyplot as plt

from dufs_core import DUFS
from dufs_core.datasets import two_moons
from dufs_core.inspection import plotting

moons = two_moons(n_features=20, random_state=0)
selector = DUFS(random_state=0).fit(moons.X)

fig, axes = plt.subplots(1, 4, figsize=(15, 3.6), layout="constrained")
plotting.spectrum(selector, moons.X, axes[0])
plotting.embedding(selector, moons.X, moons.labels, axes[1:3])
plotting.precision_recall(selector, moons.informative, axes[3])
plt.show()
