"""DUFS, the scikit-learn selector whose decoys state a false discovery rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dufs_core.selection.base import Drawn, Explanation
from dufs_core.selection.gated_selector import GatedSelector

if TYPE_CHECKING:
    from dufs_core.selection.decoys.competition import DecoyCompetition

_GATES = "it is one of GatedLaplacian, whose gates are trained"
_TRAINING = (
    "lam", "saturation", "gate_sigma", "learning_rate", "max_iter", "tol", "batch_size", "callbacks", "engine",
    "n_draws", "optimizer", "max_runs", "conventions",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)  # writes __init__ alone
class DUFS(GatedSelector):
    """Unsupervised feature selection with a gated Laplacian and decoys, at a false discovery rate.

    Decoys, shuffled copies of all columns, decide which columns are selected and how many. A small set of columns that
    depend on one another has an open gate, z_k = 1, all others z_k = 0, and every column is scored on the neighbourhood
    graph of the gated data Xt = X * z, without the column itself,

        s_k = x_k' P^t x_k / n,    P = diag(K 1)^(-1) K,    K_ij = exp(-||xt_i - xt_j||^2 / b).

    Those that score best are the next set, until it stays the same. Every column then competes with its decoys by the
    most that its score, another column, or a product of others says of it, and as many are selected as keep the
    expected share of nuisance at `fdr` or below (`dufs_core.significance.decoys`).

    The score is the gated Laplacian score of Lindenbaum, Shaham, Svirsky, Peterfreund and Kluger, arXiv 2007.04728.
    They train stochastic gates by its gradient: `dufs_core.GatedLaplacian`. Trained from the set that is found here,
    gates changed no selection (docs/defaults.md, "Gates, on and off"), and so they are not. The decoys are not part of
    their method.

    Parameters
    ----------
    fdr : float, default 0.1
        **What to select.** False discovery rate: the expected share, among the selected columns, of columns that are
        independent of all others (in finite samples, if these are independent of one another, too).
    rows : "independent" or "series", default "independent"
        "series": rows are in the order of time, evenly spaced, as one series or as several by the `groups` of fit.
        Columns are freed of what their own past says of them first (`dufs_core.significance.series`): approximate, for
        stationary columns, trends and random walks. Of more than 512 rows means of consecutive ones are taken.
    max_rows : int or None, default None
        Independent rows that take part at most, at least 512; of more so many are drawn. None: all, unless their pairs
        of columns would take more than 10^13 multiply-adds or 1 GiB (165,000 rows of 2,000 columns); `rows_` says how
        many did.
    n_features_to_select : int, float or None, default None
        An int: exactly that many, best first. A float between 0 and 1: that share of the columns, at least one. None:
        those that `fdr` admits.
    ranking : "diverse" or "evidence", default "diverse"
        Order of the selected columns. "evidence": the most `evidence_` first. "diverse": first the columns that
        together say most about the structure of all, so that few repeat each other, n_features_to_select of them or 300
        (`dufs_core.selection.diverse_ranking`); then the others by evidence.
    graph : Graph, default Graph()
        The neighbourhood graph of the rows: `dufs_core.Graph`. The default has 5 neighbours, or all n - 1 other rows
        where there are fewer.
    random_state : int, RandomState instance or None, default None
    scaling : "columns", "global" or "none", default "columns"
        **Machine and data.** Mean 0 and variance 1 for each column; centred columns and one common scale (images);
        centred only.
    backend : "auto", "numpy" or "cupy", default "auto"
        Where to compute. "auto": on the GPU where CuPy can, else with NumPy; sparse X on the side where it lives. X may
        live on either side.
    dtype : "float32" or "float64", default "float32"
    max_memory : int or None, default None
        Bytes that a fit may allocate, on the device for CuPy; None: what is available. A fit that would need more is
        refused before it allocates anything.
    n_jobs : int or None, default None
        Threads; None or -1: all cores. Results do not depend on it.
    verbose : int, default 0
        1: a progress bar on standard error.

    Attributes
    ----------
    support_ : ndarray (n_features,) of bool
        The columns selected.
    order_ : ndarray (n_features,) of int
        Column indices, best first, in the order of `ranking`; exact ties by column index.
    ranking_ : ndarray (n_features,) of int
        Rank of each column; 1 is best.
    q_values_ : ndarray (n_features,)
        The smallest fdr at which each column is selected: small is sure, 1 is never. Its minimum is the smallest rate
        at which anything is found.
    evidence_ : ndarray (n_features,)
        What competes, large is strong: -log of the chance that a shuffled column has such a score on the graph, or
        depends so much on another column or on a product of two or three, whichever says most. Products are asked where
        there are few columns (`dufs_core.significance.products`).
    decoy_evidence_ : ndarray (n_decoys, n_features)
        The same of the decoys; NaN for columns that are constant, or vary in fewer than three of the rows looked at.
    scores_ : ndarray (n_features,)
        x_k' P^t x_k / n, larger is better: the gated Laplacian score of every column, with an open gate or not, on the
        graph without the column itself; columns clipped at two standard deviations.
    in_graph_ : ndarray (n_features,) of bool
        The columns with an open gate, whose graph it is.
    fdr_ : float
        The rate of this fit.
    constant_features_ : ndarray of int
    diagnosis_ : tuple of dufs_core.significance.diagnosis.Finding
        What says that the rows may not be exchanged (time order, batches, copies, far rows, row numbers, cells imputed
        together), each with its number and a sentence that says what to do; empty where nothing was found.
    rows_ : dufs_core.significance.rows.RowsUsed
        How many rows took part, in how many groups they were exchanged, and how many were left out.
    backend_ : str
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    GatedLaplacian : the trained gates of the paper, without decoys.
    stability_selection : how often columns are selected on halves of the rows.

    Examples
    --------
    >>> from dufs_core import DUFS
    >>> from dufs_core.datasets import two_moons
    >>> X = two_moons(n_features=10).X
    >>> DUFS(random_state=0).fit(X).order_[:2]
    array([0, 1])
    """

    fdr: float = 0.1
    rows: Literal["independent", "series"] = "independent"
    max_rows: int | None = None
    ranking: Literal["diverse", "evidence"] = "diverse"

    _elsewhere: ClassVar = dict.fromkeys(_TRAINING, _GATES)

    def _procedure(self) -> DecoyCompetition:
        from dufs_core.selection.decoys.competition import DecoyCompetition

        return DecoyCompetition(self)

    def _facts(self) -> dict[str, Any]:
        q = self.q_values_
        found = {"fdr": self.fdr_, "n_found": int((q <= self.fdr_).sum()), "smallest_fdr": float(q.min())}
        return found | {"n_decoys": len(self.decoy_evidence_)}

    def _drawn(self) -> Drawn:
        from dufs_core.selection.decoys.explanation import is_judged

        aside = {"not judged": ~is_judged(self)}
        return Drawn(self.evidence_, "evidence", False, aside, self.decoy_evidence_, ())

    def _explanation(self, n: int) -> Explanation:
        from dufs_core.selection.decoys.explanation import explain

        return explain(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


DUFS.__module__ = "dufs_core"  # where users find it, and where pickles look for it
