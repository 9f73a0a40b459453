"""Pictures of fits. Every function takes matplotlib axes, or makes a figure of its own, and returns the axes.

`selector` is a fitted DUFS, LambdaPath or selector of `dufs_core.baselines`, where nothing else is said; one that is
not fitted is a NotFittedError, one without what the picture shows a TypeError.

The state of matplotlib.pyplot is neither used nor changed: figures made here belong to nobody else, and
``ax.figure.savefig("picture.png")`` saves them. Matplotlib is imported when the first picture is drawn.
"""

from __future__ import annotations

from dufs_core.inspection.plotting.data import embedding, selected_pixels, spectrum
from dufs_core.inspection.plotting.fits import gate_trajectories, loss_and_gates, precision_recall, ranked_scores
from dufs_core.inspection.plotting.paths import lambda_path, path_criterion

__all__ = ["embedding", "gate_trajectories", "lambda_path", "loss_and_gates", "path_criterion", "precision_recall"]
__all__ += ["ranked_scores", "selected_pixels", "spectrum"]
