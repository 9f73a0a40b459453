"""Pictures of fits. Every function draws on the matplotlib axes given, or on a new figure, and returns the axes.

`selector` is a fitted DUFS, LambdaPath or selector of `dufs_core.baselines`, if nothing else is said. Raises
NotFittedError without a fit, and TypeError if the selector lacks what is drawn.

matplotlib.pyplot is not used: ``ax.figure.savefig("picture.png")`` saves a picture.
"""

from __future__ import annotations

from dufs_core.inspection.plotting.data import embedding, selected_pixels, spectrum
from dufs_core.inspection.plotting.fits import gate_trajectories, loss_and_gates, precision_recall, ranked_scores
from dufs_core.inspection.plotting.paths import lambda_path, path_criterion

__all__ = ["embedding", "gate_trajectories", "lambda_path", "loss_and_gates", "path_criterion", "precision_recall"]
__all__ += ["ranked_scores", "selected_pixels", "spectrum"]
