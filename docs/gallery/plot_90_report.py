"""
A selection explained
=====================

``report`` says why every feature was kept or dropped, and which of the kept ones are redundant. Here a copy of a moon's
coordinate was added, and one column is constant. ``report(...).html()`` is the same report as a page with pictures.
"""

import matplotlib.pyplot as plt
import numpy as np

from dufs_core import DUFS, report
from dufs_core.datasets import two_moons
from dufs_core.inspection import plotting

moons = two_moons(n_features=20, random_state=0)
copy = 2 * moons.X[:, :1] + 0.001 * np.random.default_rng(0).normal(size=(100, 1))
X = np.hstack([moons.X, copy, np.ones((100, 1))])
selector = DUFS(random_state=0).fit(X)
print(report(selector, X).text(most=5))

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
plotting.ranked_scores(selector, ax)
plt.show()
