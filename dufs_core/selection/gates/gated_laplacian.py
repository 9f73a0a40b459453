"""GatedLaplacian, the published gates as a scikit-learn selector, with a search over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from dufs_core.errors import CheckpointError, invalid_choice
from dufs_core.selection.base import Drawn, Explanation
from dufs_core.selection.gated_selector import GatedSelector
from dufs_core.selection.settings import Conventions, Graph, flat_settings, set_flat

if TYPE_CHECKING:
    from dufs_core.selection.gates.search import GateSearch

_PAPER = Graph(power=2, bandwidth="max", n_neighbors=2, bandwidth_factor=5.0, self_loops=True)
_AUTHORS_CODE = Conventions(
    gate_noise="sample", batches="wrap", noisy_start=True, rate_per_column=True, zero_bandwidth="one", delta=1e-6
)
_PUBLISHED = {"n_draws": 1, "optimizer": "sgd", "learning_rate": 1.0, "max_iter": 15_000, "max_runs": 1}
_WIDE_GRAPH = _PAPER.with_parts({"n_neighbors": 5, "bandwidth_factor": 0.5, "self_loops": False})
_CODE_GRAPH = _PAPER.with_parts({"bandwidth": "median", "n_neighbors": 1, "bandwidth_factor": 1.0})
PRESETS: dict[str, dict[str, Any]] = {
    "wide": {"ranking": "diverse", "graph": _WIDE_GRAPH},
    "paper": {**_PUBLISHED, "graph": _PAPER},
    "authors_code": {**_PUBLISHED, "graph": _CODE_GRAPH, "conventions": _AUTHORS_CODE},
}


@dataclass(kw_only=True, eq=False, repr=False)  # writes __init__ alone
class GatedLaplacian(GatedSelector):
    """The published method: stochastic gates that maximise a gated Laplacian score; without decoys, without a rate.

    Learns a gate z_k = clip(mu_k + gate_sigma eps_k, 0, 1), eps_k ~ N(0, 1), for each column by maximising the score of
    the gated data Xt = X * z on its own neighbourhood graph:

        S = Tr(Xt' P^t Xt),  P = diag(K 1)^(-1) K,  K_ij = exp(-||xt_i - xt_j||^2 / b)
        lam None:  minimise  -S / (n sum_k P(z_k > 0))          lam >= 0:  -S / n + lam sum_k P(z_k > 0)

    Gates of all columns start half open, and those with mu > 0 at the end are selected. Source: Lindenbaum, Shaham,
    Svirsky, Peterfreund and Kluger, arXiv 2007.04728. The settings of the paper are ``GatedLaplacian.preset("paper")``;
    the defaults are not: several draws a step, normalised steps, a narrower graph, and a search over several runs,
    which tests of structure end, are this package's.

    Parameters
    ----------
    lam : float or None, default None
        **What to select.** Regularisation strength: what an open gate costs. None: the parameter-free loss.
    saturation : float or None, default None
        Most that one direction of the rows adds to S / n however many columns carry it, in units of a column's
        variance: the score is S = nu Tr(P^t G (G + nu I)^(-1)) with G = Xt Xt' and nu = n saturation, and copies of a
        column count once. With 0.3 a few columns of every structure open, and not all of the strongest one; lam must be
        well below the limit. A step takes up to ten times as long. Tests of the selection (max_runs) have no limit.
        None: no limit, S as above.
    n_features_to_select : int, float or None, default None
        An int: exactly that many, best first. A float between 0 and 1: that share of the columns, at least one. None:
        those whose gate is open.
    ranking : "gates" or "diverse", default "gates"
        Order of the columns. "gates": the largest mu first, as in the paper. "diverse": first the open columns that
        together say most about the structure of all, so that few repeat each other, n_features_to_select of them or 300
        (`dufs_core.selection.diverse_ranking`); then the others by mu.
    max_runs : int, default 6
        Most training runs. A run ends the search if its columns exceed shuffled ones by a score
        (`dufs_core.significance.permutation`) of at least 0.18, or 0.18 sqrt(10 / m) for m > 10 columns, at 100 rows
        (fewer rows ask for more); or if each depends on another more than the strongest of all pairs does in 19 data
        sets with shuffled columns (`dufs_core.significance.hsic`). Otherwise the next run trains, with other draws, on
        the 20 columns that depend most on another one, later ones on the first 14, 10, 7, 5 of these. If none ends it,
        the run with the largest excess is kept, with a warning. 1 trains once, as the paper does.
    graph : Graph, default Graph(power=2, bandwidth="max", n_neighbors=2, bandwidth_factor=2.0, self_loops=True)
        The neighbourhood graph of the rows: `dufs_core.Graph`, whose own defaults are those of `DUFS`;
        ``set_params(graph__power=3)`` changes one part and leaves the others. Selections are tested (max_runs) with
        self-loops.
    gate_sigma : float, default 0.5
        **Optimisation.** Standard deviation of the gate noise.
    n_draws : int or "auto", default "auto"
        Noise draws per step, in antithetic pairs (eps, -eps): 1 or an even number. "auto": 16 for steps on up to 256
        rows, 4 on more.
    optimizer : "normalized", "sgd" or "adam", default "normalized"
        See `dufs_core.objective.optimizers`. "normalized" divides the gradient by its running root mean square, so
        that one learning rate serves any number of columns.
    learning_rate : float, default 0.005
        Average movement of a gate per step for "normalized" (gates decide within a distance of about 1).
    max_iter : int, default 2000
        Most steps of one run.
    tol : float, default 0.01
        A run has converged when at most this share of the gates is undecided,
        -1.2 gate_sigma <= mu <= 1 + 1.2 gate_sigma.
    batch_size : int or None, default None
        Rows per step: near-equal batches of at most this size, every row once an epoch. None: all rows. Data on disk
        are read a batch at a time.
    conventions : "paper" or Conventions, default "paper"
        "paper": those of the paper, as ``Conventions()``. Others are where the authors' published code departs from it:
        `dufs_core.Conventions`.
    random_state : int, RandomState instance or None, default None
    callbacks : sequence of callables, default ()
        Called with a `dufs_core.training.loop.StepInfo` after every step; one that returns True ends the run. A
        `dufs_core.Checkpoint` among them saves the state of the fit instead.
    engine : "auto", "reference", "dense", "streaming", "sparse" or "cuda", default "auto"
        See `dufs_core.objective.engines`; all give the same numbers within rounding. "dense" holds n x n arrays,
        "streaming" takes memory in proportion to the data; "auto" picks the faster of the two. "cuda" needs the CuPy
        backend; sparse X has an engine of its own, "sparse".
    scaling, backend, dtype, max_memory, n_jobs, verbose
        As in `dufs_core.DUFS`.

    Attributes
    ----------
    support_ : ndarray (n_features,) of bool
        The columns selected.
    order_ : ndarray (n_features,) of int
        Column indices, best first, in the order of `ranking`; exact ties by column index.
    ranking_ : ndarray (n_features,) of int
        Rank of each column; 1 is best.
    mu_ : ndarray (n_features,)
        Gate parameters, large is open; NaN for a column without a gate in the run that was kept (constant, or left out
        of a later run of the search).
    gate_probabilities_ : ndarray (n_features,)
        P(z > 0); NaN as `mu_`.
    scores_ : ndarray (n_features,)
        Larger is better: mu. Columns without a gate are below all others, in the order of the first run, then the
        constant ones; their numbers say no more than that.
    excess_score_, p_value_ : float
        How much better than shuffled columns those with mu > 0 are, and the p-value for these columns on the rows that
        chose them, too small for that reason (`dufs_core.LambdaPath` has one on other rows). The p-value is 0.05 where
        `stopped_by_hsic_`, whatever the excess: tight clusters have none.
    stopped_by_hsic_ : bool
        Whether the dependence of pairs of columns ended the search (see max_runs).
    history_ : dict of ndarray (n_iter_,)
        step, loss, score (S / n), bandwidth, open_gates, undecided_gates of the run that was kept.
    n_iter_, n_runs_ : int
    converged_ : bool
    constant_features_ : ndarray of int
    diagnosis_ : tuple of dufs_core.significance.diagnosis.Finding
        What says that the rows may not be exchanged (time order, batches, copies, far rows, row numbers, cells imputed
        together), each with its number and a sentence that says what to do; empty where nothing was found.
    rows_ : dufs_core.significance.rows.RowsUsed
        How many rows took part, in how many groups they were exchanged, and how many were left out.
    backend_, engine_ : str
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    DUFS : a selection at a stated false discovery rate.
    LambdaPath : a lambda chosen without labels.

    Examples
    --------
    >>> from dufs_core import GatedLaplacian
    >>> from dufs_core.datasets import two_moons
    >>> X = two_moons(n_features=10).X
    >>> GatedLaplacian(random_state=0).fit(X).support_.nonzero()[0]
    array([0, 1])
    """

    lam: float | None = None
    saturation: float | None = None
    ranking: Literal["gates", "diverse"] = "gates"
    max_runs: int = 6
    graph: Graph = _PAPER.with_parts({"bandwidth_factor": 2.0})  # noqa: RUF009 - it cannot change
    gate_sigma: float = 0.5
    learning_rate: float = 0.005
    max_iter: int = 2000
    tol: float = 0.01
    batch_size: int | None = None
    callbacks: Sequence[Any] = ()
    engine: Literal["auto", "reference", "dense", "streaming", "sparse", "cuda"] = "auto"
    n_draws: int | Literal["auto"] = "auto"
    optimizer: Literal["normalized", "sgd", "adam"] = "normalized"
    conventions: Conventions | Literal["paper"] = "paper"

    groups: ClassVar = {"graph": Graph, "conventions": Conventions}
    _elsewhere: ClassVar = {"fdr": "gates have no decoys, and no rate; DUFS(fdr=0.1) has"}

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Settings for wide data, of the paper or of the authors' published code, with `changes` (`set_params`) on top.

        "wide", for more columns than rows: a graph of close neighbours (no self-loops, half of the largest squared
        distance to the fifth other row as bandwidth), ranking="diverse", since many gates end open (docs/defaults.md).

        "paper": one noise vector per batch, bandwidth 5 times the largest squared distance to the second other row.
        "authors_code": the bandwidth is the median squared distance to the nearest other row (their second neighbour
        counts the row itself), and ``conventions`` are those of their code, noise per sample among them. These two: one
        run of at most 15,000 steps of plain SGD with one draw, t = 2 and learning rate 1 (for the regularised loss
        "paper" needs their rates, 0.3 to 1, divided by the number of columns).

        Raises ValueError for another name.
        """
        if name not in PRESETS:
            raise invalid_choice("preset", name, PRESETS)
        selector: Self = cls(**PRESETS[name]).set_params(**changes)
        return selector

    @classmethod
    def resume(cls, path: Any, X: Any, *, groups: Any = None, **parameters: Any) -> Self:
        """Go on with a fit from its checkpoint: the result is, bit by bit, that of a fit never interrupted.

        Parameters
        ----------
        path : path
            Of a `dufs_core.Checkpoint`. If the last state is damaged, the one before it is used, with a warning.
        X : array-like (n_samples, n_features)
            The data that the fit was started with.
        groups : array-like, optional
            Those that it was started with.
        **parameters
            n_jobs, max_memory, verbose and callbacks are free, and not remembered: callbacks may hold a Checkpoint with
            the same or another path; by default one is made with `path`. Any other parameter is taken from the file.

        Returns
        -------
        selector
            Fitted; its random_state is the seed of the fit, its backend and engine are those that "auto" came to.

        Raises
        ------
        CheckpointError
            If the data, the groups, a parameter given here, the engine or the version is another one (the message names
            it), if the fit was that of another selector, or if no state is usable.
        FileNotFoundError
            If there is no checkpoint.
        """
        from dufs_core.selection import checkpoint

        callbacks = tuple(parameters.pop("callbacks", None) or ())
        saving = checkpoint.find(callbacks)
        if saving is None:
            saving = checkpoint.Checkpoint(path)
            callbacks = (saving, *callbacks)
        name, settings = saving.read(path)
        if name != cls.__name__:
            raise CheckpointError(f"{path} is the checkpoint of a {name}, and this is {cls.__name__}: fit anew")
        if unknown := settings.keys() - flat_settings(cls()):
            raise CheckpointError(f"{path} has settings that {name} has not: {', '.join(sorted(unknown))}")
        selector: Self = set_flat(cls(), settings).set_params(**parameters, callbacks=callbacks)
        return selector.fit(X, groups=groups)

    def _procedure(self) -> GateSearch:
        from dufs_core.selection.gates.search import GateSearch

        return GateSearch(self)

    def _facts(self) -> dict[str, Any]:
        return {name: getattr(self, f"{name}_") for name in ("excess_score", "p_value", "stopped_by_hsic", "n_runs")}

    def _drawn(self) -> Drawn:
        aside = {"set aside": self.mu_ != self.mu_}
        return Drawn(self.scores_, r"gate parameter $\mu$", True, aside, None, ("loss_and_gates",))

    def _explanation(self, n: int) -> Explanation:
        from dufs_core.selection.gates.explanation import explain

        return explain(self, n)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.engine in ("auto", "sparse") and self.group("conventions").gate_noise == "batch"
        return tags


GatedLaplacian.__module__ = "dufs_core"  # where users find it, and where pickles look for it
