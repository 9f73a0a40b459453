"""What a search of the gates found, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from dufs_core.backend import Array
from dufs_core.objective.protocol import undecided
from dufs_core.selection.base import Explanation
from dufs_core.selection.explanation import COMPLEMENTING, convergence_note, sentences
from dufs_core.significance.permutation import excess_threshold
from dufs_core.training.loop import Run

_SURE = 0.05


def doubt_of_gates(
    settings: Any, run: Run, scores: Array, constant: Array, judged: Any, passed: bool, n: int
) -> str | None:
    """That no gate or every gate is open, or that no run passed the permutation test.

    judged: `dufs_core.selection.gates.search.Judgement`.
    """
    d = len(scores)
    n_open = int((scores > 0).sum())
    varying = d - int(constant.sum())
    if n_open in (0, varying) and settings.n_features_to_select is None:
        what = f"all {varying} features" + " that are not constant" * (varying < d) if n_open else "no feature"
        if settings.lam is not None:
            fit, after = "fit", f"with lam={settings.lam}"
            advice = f"a {'larger' if n_open else 'smaller'} lam, lam=None"
        elif run.converged:
            fit, after = "parameter-free fit", f"and converged, after {run.n_iter} steps"
            advice = 'another scaling ("global" where columns share a unit) or bandwidth ("q90"), or set lam'
        else:
            fit, after = "parameter-free fit", f"after {run.n_iter} steps of at most {settings.max_iter}"
            advice = "more steps, another random_state"
        return (
            f"The {fit} selected {what} {after}: try {advice}, or set n_features_to_select to take the best of the "
            f"ranking."
        )
    if passed or judged.n_runs < settings.max_runs:
        return None
    none = f"None of {judged.n_runs} runs" if judged.n_runs > 1 else "The run has not"
    return (
        f"{none} found convincing structure: the {n_open} features with mu > 0 have an excess score of "
        f"{judged.excess_score:.3g}, and {excess_threshold(n_open, n):.3f} is asked of so many, since columns "
        f"chosen from {d} have some by chance. Treat the selection as noise unless other rows confirm it "
        f"(LambdaPath, stability_selection), or look at other scaling and bandwidth settings."
    )


def explain(selector: Any, n: int) -> Explanation:
    """The gates of a fitted `dufs_core.GatedLaplacian` on n rows."""
    reasons = [_reason(selector, k) for k in range(len(selector.mu_))]
    order = f"{COMPLEMENTING}, not by gates" if selector.ranking == "diverse" else None
    numbers = {"mu": selector.mu_, "probability": selector.gate_probabilities_}
    notes = [*_notes(selector, n), *sentences(selector.diagnosis_)]
    return Explanation(reasons, notes, numbers, order, False, selector.ranking == "gates")


def _reason(selector: Any, k: int) -> str:
    mu = selector.mu_[k]
    if np.isnan(mu):
        return "took no part in the run that was kept; ranked by the first run"
    reason = f"gate open: mu = {mu:.2f} > 0" if mu > 0 else f"gate closed: mu = {mu:.2f}"
    reason += f", P(z > 0) = {selector.gate_probabilities_[k]:.3f}"
    return reason + ", undecided" * bool(undecided(mu, selector.gate_sigma))


def _notes(selector: Any, n: int) -> list[str]:
    excess, p, runs = selector.excess_score_, selector.p_value_, selector.n_runs_
    notes = [convergence_note(selector, f"{selector.n_iter_} steps; the best of {runs} run" + "s" * (runs > 1))]
    if selector.stopped_by_hsic_:
        pairs = "Each open column depends on another one more than the strongest pair of shuffled columns does"
        notes.append(f"{pairs} (pairwise HSIC, p = {p:.2g}; excess score {excess:.3f}).")
    else:
        threshold = excess_threshold(int((selector.mu_ > 0).sum()), n)
        verdict = "no more" if p > _SURE else "more" if excess >= threshold else "slightly more"
        test = f"excess score {excess:.3g}, p = {p:.2g}"
        notes.append(f"The open columns have {verdict} structure than the same columns shuffled ({test}).")
        if verdict == "slightly more":
            notes.append(
                f"Convincing for so many columns is an excess score of {threshold:.3f}, since by chance columns chosen "
                "from many have some excess: confirm them on other rows (LambdaPath, stability_selection)."
            )
    looked = int((~np.isnan(selector.mu_)).sum())
    if aside := len(selector.mu_) - looked - len(selector.constant_features_):
        kept = f"The run that was kept had gates for the {looked} columns that depend most on another one"
        notes.append(f"{kept}; the other {aside} rank after them, in the order of the first run.")
    if selector.rows_.sentence:
        notes.append(selector.rows_.sentence)
    return notes
