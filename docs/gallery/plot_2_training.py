"""
Watching a fit
==============

A ``Trajectory`` keeps the gates at every step, ``history_`` the loss and the number of open gates. The fit has
converged when hardly any gate is left in the band where the noise can still open or close it. In ``GatedLaplacian``
all columns have gates. Here one run is trained (``max_runs=1``), without the search over several.
"""

import matplotlib.pyplot as plt

from dufs_core import GatedLaplacian, Trajectory
from dufs_core.datasets import two_moons
from dufs_core.inspection import plotting

problem = two_moons(n_features=12, random_state=1)
trajectory = Trajectory()
selector = GatedLaplacian(max_runs=1, random_state=0, callbacks=[trajectory]).fit(problem.X)
print(f"{selector.n_iter_} steps, converged: {selector.converged_}, selected: {selector.support_.nonzero()[0]}")

fig, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
plotting.gate_trajectories(trajectory, selector, axes[0, 0])
plotting.loss_and_gates(selector, axes[0, 1])
plotting.ranked_scores(selector, axes[1, 0])
plotting.precision_recall(selector, problem.informative, axes[1, 1])
plt.show()
