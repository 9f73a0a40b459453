"""
Columns beside their shuffled copies
====================================

Twenty pixels of handwritten digits as they are, among 480 whose rows were shuffled, so that they tell nothing. Every
column competes with five shuffled copies of itself, the decoys (grey). What rises above them is selected.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dufs_core import DUFS
from dufs_core.inspection import plotting

rng, images = np.random.default_rng(0), load_digits().data[:400]
pixels = np.flatnonzero(images.std(axis=0) > 2)
real = images[:, rng.choice(pixels, 20, replace=False)]
nuisance = rng.permuted(images[:, rng.choice(pixels, 480)], axis=0)
selector = DUFS(random_state=0).fit(np.hstack([real, nuisance]))
print(f"{selector.support_[:20].sum()} of the 20 real pixels and {selector.support_[20:].sum()} of 480 others selected")

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
plotting.ranked_scores(selector, ax)
plt.show()
