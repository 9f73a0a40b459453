"""
The price of an open gate
=========================

With ``lam`` the loss has a price for every open gate, and with the price the number of features falls. The fits share
their data and run together; the permutation gap says at which price the open columns have structure in common.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from dufs_core import DUFS, fit_population
from dufs_core.errors import SelectionWarning

X = load_wine().data[::2]  # 89 wines, 13 measurements
prices = np.geomspace(0.05, 0.6, 10)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", SelectionWarning)  # at the ends of the path all gates are open, or none
    path = fit_population([DUFS(lam=lam, n_restarts=1, max_iter=1000, random_state=0) for lam in prices], X)
for lam, selector in zip(prices, path, strict=True):
    print(f"lam {lam:.3f}: {selector.support_.sum():2d} open, permutation gap {selector.permutation_gap_:.2f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.semilogx(prices, [selector.support_.sum() for selector in path], "o-", color="0.2")
left.set(title="open gates", xlabel="lam", ylim=(0, 13.5))
right.semilogx(prices, [selector.permutation_gap_ for selector in path], "o-", color="C3")
right.set(title="permutation gap", xlabel="lam")
plt.show()
