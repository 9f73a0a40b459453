"""
Selected pixels
===============

The pixels that a fit keeps, marked on an image, and the gates of all of them.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from dufs_core import DUFS, plotting

digits = load_digits(n_class=4)
X = digits.data[:300]
selector = DUFS(n_features_to_select=16, scaling="global", n_restarts=1, random_state=0).fit(X)

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
plotting.selected_pixels(selector, (8, 8), digits.images[0], left)
plotting.selected_pixels(selector, (8, 8), ax=right)
plt.show()
