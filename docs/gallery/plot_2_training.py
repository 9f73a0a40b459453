"""
Watching a fit
==============

``history_`` holds the loss, the bandwidth and the gates at every step; a callback sees the gates themselves.
The fit has converged when hardly a gate is left between the dashed lines, where the noise can still turn it.
"""

import matplotlib.pyplot as plt
import numpy as np

from dufs_core import DUFS
from dufs_core.datasets import two_moons

X = two_moons(n_features=12, random_state=1).X
seen = []
selector = DUFS(n_restarts=1, random_state=0, callbacks=[lambda step: seen.append(np.array(step.mu))]).fit(X)
history = selector.history_
print(f"{selector.n_iter_} steps, converged: {selector.converged_}, selected: {selector.support_.nonzero()[0]}")

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
left.plot(history["step"], seen, color="0.6", lw=1)
left.plot(history["step"], np.array(seen)[:, :2], color="C3", lw=2)
for edge in (-1.2 * selector.gate_sigma, 1 + 1.2 * selector.gate_sigma):
    left.axhline(edge, color="k", ls="--", lw=0.8)
left.set(title="gates (the two moons in red)", xlabel="step", ylabel="mu")
middle.plot(history["step"], history["loss"], color="0.2", lw=1)
middle.set(title="loss", xlabel="step")
right.plot(history["step"], history["open_gates"], label="open")
right.plot(history["step"], history["undecided_gates"], label="undecided")
right.set(title="number of gates", xlabel="step", ylim=0)
right.legend()
plt.show()
