"""
Beside other selectors
======================

Two moons among eight columns of noise, then eighteen, then thirty-eight. Every method ranks the columns. The picture
has the share of the moons' columns among the first two, as means over four data sets.
"""

import matplotlib.pyplot as plt
import numpy as np

from dufs_core import DUFS
from dufs_core.baselines import LLCFS, MCFS, SRCFS, LaplacianScore
from dufs_core.datasets import two_moons

methods = {
    "DUFS": DUFS(n_features_to_select=2, random_state=0),
    "Laplacian score": LaplacianScore(n_features_to_select=2),
    "MCFS": MCFS(n_features_to_select=2, n_clusters=2),
    "LLCFS": LLCFS(n_features_to_select=2, n_clusters=2, n_neighbors=15),
    "SRCFS": SRCFS(n_features_to_select=2, random_state=0),
}
widths = (10, 20, 40)
problems = {d: [two_moons(n_features=d, random_state=seed) for seed in range(4)] for d in widths}
for marker, (name, method) in zip("osv^D", methods.items(), strict=True):
    hits = [np.mean([(method.fit(p.X).order_[:2] < 2).mean() for p in problems[d]]) for d in widths]
    print(f"{name:16}", *(f"{share:.2f}" for share in hits))
    plt.plot(widths, hits, marker + "-", label=name)
plt.gca().set(xlabel="columns", xticks=widths, ylabel="share of the two moons found", ylim=(-0.03, 1.05))
plt.legend(fontsize="small")
plt.show()
