"""The numbers and the picture of docs/walks/series.md: twelve series of an economy among random walks.

    python -m bench.walks.series --out DIR

Needs matplotlib and statsmodels, which ships the data (`statsmodels.datasets.macrodata`).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.walks import run
from dufs_core import DUFS
from dufs_core.inspection.plotting.canvas import figure

REAL, WALKS = 12, 40
SEEDS = 10


def table() -> Any:
    """203 quarters of twelve series of the United States, 1959 to 2009, beside 40 random walks."""
    from statsmodels.datasets import macrodata

    frame = macrodata.load_pandas().data.drop(columns=["year", "quarter"])
    rng = np.random.default_rng(0)
    for k in range(WALKS):
        frame[f"walk{k}"] = rng.normal(size=len(frame)).cumsum()
    return frame


def economy(out: Path) -> None:
    """Told and not told of the order of time; ten seeds; the picture."""
    frame = table()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        untold = DUFS(random_state=0, backend="numpy").fit(frame)
    print(f"DUFS(): {untold.support_.sum()} of {frame.shape[1]} selected")
    print(caught[-1].message)
    fits = [DUFS(rows="series", random_state=seed, backend="numpy").fit(frame) for seed in range(SEEDS)]
    print(*fits[0].get_feature_names_out())
    print(fits[0].rows_.sentence)
    for seed, fit in enumerate(fits):
        print(
            f"seed {seed}: {fit.support_[:REAL].sum()} of {REAL} series, {fit.support_[REAL:].sum()} of {WALKS} walks"
        )
    picture(frame, untold, fits[0]).savefig(out / "series.png", dpi=80)


def picture(frame: Any, untold: DUFS, told: DUFS) -> Any:
    """Six columns, and the evidence of all of them beside that of their decoys, not told and told."""
    fig, (left, middle, right) = figure(1, 3, 3.7, 3.2)
    scaled = (frame - frame.mean()) / frame.std()
    year = 1959 + np.arange(len(frame)) / 4
    for name in ("realgdp", "realcons", "unemp", "infl"):
        left.plot(year, scaled[name], lw=1, label=name)
    left.plot(year, scaled[["walk0", "walk3"]], lw=1, color="0.6")
    left.legend(fontsize=7)
    left.set(title="six of 52 columns (grey: random walks)", xlabel="year")
    for ax, fit, name in ((middle, untold, "DUFS()"), (right, told, 'DUFS(rows="series")')):
        ax.plot(fit.decoy_evidence_.T, "_", color="0.75", ms=5)
        ax.plot(np.arange(REAL, REAL + WALKS), fit.evidence_[REAL:], "o", color="C0", ms=4, label="random walks")
        ax.plot(np.arange(REAL), fit.evidence_[:REAL], "o", color="C3", ms=4, label="the economy")
        ax.set(title=f"{name}: {fit.support_.sum()} selected", xlabel="column", ylabel="evidence; grey: decoys")
    middle.legend(fontsize=7)
    return fig


if __name__ == "__main__":
    run(__doc__, {"economy": economy})
