"""
Pixels of images
================

Pixels share a scale. With ``scaling="global"`` columns are centred and divided by one common number, so that pixels
that hardly vary stay small. The 16 pixels that rank best are marked on the first digits.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from dufs_core import DUFS
from dufs_core.inspection import plotting

digits = load_digits(n_class=4)
X, labels = digits.data[:300], digits.target[:300]
selector = DUFS(n_features_to_select=16, scaling="global", random_state=0).fit(X)
rng = np.random.default_rng(0)


def accuracy(columns):
    """Accuracy of a classifier, from these columns, on the rows that were not used."""
    model = LogisticRegression(max_iter=5000).fit(X[:, columns], labels)
    return model.score(digits.data[300:][:, columns], digits.target[300:])


at_random = np.mean([accuracy(rng.choice(64, 16, replace=False)) for _ in range(10)])
print(f"accuracy from the 16 pixels {accuracy(selector.order_[:16]):.3f}, from 16 at random {at_random:.3f}")
fig, axes = plt.subplots(1, 5, figsize=(11, 2.8), layout="constrained")
for ax, image in zip(axes[:4], X, strict=False):
    plotting.selected_pixels(selector, (8, 8), image, ax)
plotting.selected_pixels(selector, (8, 8), ax=axes[4])
plt.show()
