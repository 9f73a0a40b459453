"""DUFS, the scikit-learn selector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from dufs_core.errors import CheckpointError, invalid_choice
from dufs_core.selection.base import ColumnSelector
from dufs_core.selection.presets import PRESETS


@dataclass(kw_only=True, eq=False, repr=False)  # writes __init__ alone
class DUFS(ColumnSelector):
    """Differentiable unsupervised feature selection with a gated Laplacian.

    Learns a stochastic gate z_k = clip(mu_k + gate_sigma eps_k, 0, 1), eps_k ~ N(0, 1), for each column by maximising
    the score of the gated data Xt = X * z on its own neighbourhood graph:

        S = Tr(Xt' P^t Xt),  P = diag(K 1)^(-1) K,  K_ij = exp(-||xt_i - xt_j||^2 / b)
        lam >= 0:  minimise  -S / n + lam sum_k P(z_k > 0)          fdr=None, lam=None:  -S / (n sum_k P(z_k > 0))

    Source: Lindenbaum, Shaham, Svirsky, Peterfreund and Kluger, arXiv 2007.04728.

    Decoys, shuffled copies of all columns, decide which columns are selected and how many: the gates start from the
    few columns and decoys that structure is found among, every column is scored on the graph of the open ones, and as
    many are selected as keep the expected share of nuisance at `fdr` or below (`dufs_core.significance.decoys`).

    Parameters
    ----------
    fdr : float or None, default 0.1
        **What to select.** False discovery rate: the expected share, among the selected columns, of columns that are
        independent of all others (in finite samples, if these are independent of one another, too). None: no decoys;
        gates of all columns start half open, and those with mu > 0 at the end are selected, as in the paper.
    lam : float or None, default None
        Regularisation strength: what an open gate costs. None: the value that keeps 99% of shuffled columns shut; with
        fdr=None the parameter-free loss.
    n_features_to_select : int, float or None, default None
        An int: exactly that many, best first. A float between 0 and 1: that share of the columns, at least one. None:
        those that `fdr` admits.
    ranking : "diverse", "evidence", "gates" or None, default None
        Order of the selected columns (fdr=None: of the open ones). "evidence": the most `evidence_` first. "gates":
        the largest mu first, as in the paper. "diverse": first the columns that together say most about the structure
        of all, so that few repeat each other, n_features_to_select of them or 300
        (`dufs_core.selection.diverse_ranking`); then the others by evidence, or mu. None: "diverse", with fdr=None
        "gates".
    power : int or None, default None
        **Graph.** t, the power of the random walk. Without self-loops P has negative eigenvalues, and S can be negative
        for an odd power. None: 1; with fdr=None 2.
    bandwidth : "max", "median", "q90", float or None, default None
        b = bandwidth_factor times the largest, the median or the 0.9 quantile of the squared distances to the
        n_neighbors-th other row, read from the gated data at every step; a number is b itself. None: "median"; with
        fdr=None "max".
    n_neighbors : int or None, default None
        Other rows: a row is not its own neighbour. None: 5; with fdr=None 2.
    bandwidth_factor : float or None, default None
        None: 1; with fdr=None 2.
    self_loops : bool or None, default None
        Whether a row is its own neighbour, K_ii = 1 (the paper's graph) or K_ii = 0. With thousands of columns all
        distances are nearly equal, and a row outweighs its neighbours unless the bandwidth is so large that every row
        is one. Selections are tested (max_runs) with self-loops. None: False; with fdr=None True.
    gate_sigma : float, default 0.5
        **Optimisation.** Standard deviation of the gate noise.
    gate_noise : "batch" or "sample", default "batch"
        One noise vector for all rows (the paper), or one per row (the authors' code; engine "reference" or "auto").
    n_draws : int or None, default None
        Noise draws per step, in antithetic pairs (eps, -eps): 1 or an even number. None: 16 for steps on up to 256
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
    max_runs : int, default 6
        With fdr=None: most training runs. A run ends the search if its columns exceed shuffled ones by a score
        (`dufs_core.significance.permutation_test`) of at least 0.18, or 0.18 sqrt(10 / m) for m > 10 columns, at 100
        rows (fewer rows ask for more); or if each depends on another more than the strongest of all pairs does in 19
        data sets with shuffled columns (`dufs_core.significance.hsic`). Otherwise the next run trains, with other
        draws, on the 20 columns that depend most on another one, later ones on the first 14, 10, 7, 5 of these. If none
        ends it, the run with the largest excess is kept, with a warning. 1 trains once.
    batch_size : int or None, default None
        Rows per step: near-equal batches of at most this size, every row once an epoch. None: all rows; with decoys a
        sample of at most 512, on which structure and scores are computed in any case.
    convention : "standard" or "authors_code", default "standard"
        "authors_code" follows the published code where it departs from the paper: learning_rate is per 1/d of the
        regularised loss, mu starts at 0.5 + truncated N(0, 0.01^2), minibatches always have batch_size rows and run
        on into the next shuffle, a bandwidth statistic below 1e-8 is replaced by 1, and 1e-6 is added to the mean open
        probability.
    random_state : int, RandomState instance or None, default None
    callbacks : sequence of callables, default ()
        Called with a `dufs_core.training.loop.StepInfo` after every step; one that returns True ends that run. A
        `dufs_core.Checkpoint` among them saves the state of the fit instead.
    scaling : "columns", "global" or "none", default "columns"
        **Machine and data.** Mean 0 and variance 1 for each column; centred columns and one common scale (images);
        centred only.
    engine : "auto", "reference", "dense", "streaming", "sparse" or "cuda", default "auto"
        See `dufs_core.objective.engines`; all give the same numbers within rounding. "dense" holds n x n arrays,
        "streaming" takes memory in proportion to X; "auto" picks the faster of the two. "cuda" needs the CuPy backend,
        and with fdr=None sparse X has an engine of its own.
    backend : "auto", "numpy" or "cupy", default "auto"
        Where to compute. "auto": on the GPU where CuPy can, else with NumPy; sparse X on the side where it lives. X may
        live on either side.
    dtype : "float32" or "float64", default "float32"
    max_memory : int or None, default None
        Bytes that a fit may allocate, on the device for CuPy; None: what is available. A fit that would need more is
        refused before it allocates anything.
    n_jobs : int or None, default None
        Threads of "dense" and "streaming"; None or -1: all cores. Results do not depend on it.
    verbose : int, default 0
        1: a progress bar on standard error.

    Attributes
    ----------
    mu_ : ndarray (n_features,)
        Gate parameters. Columns without a gate in the run that was kept are below all others: in the order of the
        first run, then the constant ones.
    gate_probabilities_ : ndarray (n_features,)
        P(z > 0).
    scores_ : ndarray (n_features,)
        x_k' P^t x_k / n, larger is better: the gated Laplacian score of every column, open or closed, on the final
        graph without the column itself; columns clipped at two standard deviations. With fdr=None mu_.
    order_ : ndarray (n_features,) of int
        Column indices, best first, in the order of `ranking`; exact ties by column index.
    ranking_ : ndarray (n_features,) of int
        Rank of each column; 1 is best.
    support_ : ndarray (n_features,) of bool
    q_values_ : ndarray (n_features,)
        With decoys alone, as the next five: the smallest fdr at which each column is selected.
    evidence_ : ndarray (n_features,)
        What competes: -log of the chance that a shuffled column has such a score on the final graph or on the one that
        the gates started from, or depends so much on another column, whichever says most.
    decoy_evidence_ : ndarray (n_decoys, n_features)
        The same of the decoys; NaN for columns that are constant, or vary in fewer than three of the rows looked at.
    smallest_fdr_ : float
        At which something is selected; 1 if nothing is at any.
    lam_ : float
        The regularisation strength that was used.
    repeated_rows_ : float
        The share of the rows looked at that repeat an earlier one, less what shuffled columns have of it.
    n_gates_ : int
        Columns and decoys with gates; `history_` counts both.
    excess_score_, p_value_ : float
        With fdr=None alone, as the next: how much better than shuffled columns those with mu > 0 are, and the p-value
        for these columns on the rows that chose them, too small for that reason (`LambdaPath` has one on other rows).
        0.05 where `stopped_by_hsic_`, whatever the excess: tight clusters have none.
    stopped_by_hsic_ : bool
        Whether the dependence of pairs of columns ended the search (see max_runs).
    bandwidth_, loss_ : float
        Means over the draws of the last step.
    history_ : dict of ndarray (n_iter_,)
        step, loss, score (S / n), bandwidth, open_gates, undecided_gates of the run that was kept.
    n_iter_, n_runs_ : int
    converged_ : bool
    constant_features_, excluded_features_ : ndarray of int
        Excluded: neither constant nor part of the run that was kept; with decoys those that no gate was given.
    backend_, engine_ : str
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from dufs_core import DUFS
    >>> from dufs_core.datasets import two_moons
    >>> X = two_moons(n_features=10).X
    >>> DUFS(random_state=0).fit(X).order_[:2]
    array([0, 1])
    """

    fdr: float | None = 0.1
    lam: float | None = None
    n_features_to_select: int | float | None = None
    ranking: Literal["evidence", "gates", "diverse"] | None = None
    power: int | None = None
    bandwidth: Literal["median", "q90", "max"] | float | None = None
    n_neighbors: int | None = None
    bandwidth_factor: float | None = None
    self_loops: bool | None = None
    gate_sigma: float = 0.5
    gate_noise: Literal["batch", "sample"] = "batch"
    n_draws: int | None = None
    optimizer: Literal["normalized", "sgd", "adam"] = "normalized"
    learning_rate: float = 0.005
    max_iter: int = 2000
    tol: float = 0.01
    max_runs: int = 6
    batch_size: int | None = None
    convention: Literal["standard", "authors_code"] = "standard"
    random_state: Any = None
    callbacks: Sequence[Any] = ()
    scaling: Literal["columns", "global", "none"] = "columns"
    engine: Literal["auto", "reference", "dense", "streaming", "sparse", "cuda"] = "auto"
    backend: Literal["auto", "numpy", "cupy"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    max_memory: int | None = None
    n_jobs: int | None = None
    verbose: int = 0

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Settings for wide data, of the paper or of the authors' published code, with `changes` on top; fdr=None.

        "wide", for more columns than rows: a graph of close neighbours (no self-loops, half of the largest squared
        distance to the fifth other row as bandwidth), ranking="diverse", since many gates end open (docs/defaults.md).

        "paper": one noise vector per batch, bandwidth 5 times the largest squared distance to the second other row.
        "authors_code": noise per sample, bandwidth the median squared distance to the nearest other row (their second
        neighbour counts the row itself), and ``convention="authors_code"``. These two: one run of at most 15,000 steps
        of plain SGD with one draw, t = 2 and learning rate 1 (for the regularised loss "paper" needs their rates, 0.3
        to 1, divided by the number of columns).

        Raises ValueError for another name.
        """
        if name not in PRESETS:
            raise invalid_choice("preset", name, PRESETS)
        return cls(**(PRESETS[name] | changes))

    @classmethod
    def resume(cls, path: Any, X: Any, **parameters: Any) -> Self:
        """Go on with a fit from its checkpoint: the result is, bit by bit, that of a fit never interrupted.

        Parameters
        ----------
        path : path
            Of a `dufs_core.Checkpoint`. If the last state is damaged, the one before it is used, with a warning.
        X : array-like (n_samples, n_features)
            The data that the fit was started with.
        **parameters
            n_jobs, max_memory, verbose and callbacks are free, and not remembered: callbacks may hold a Checkpoint with
            the same or another path; by default one is made with `path`. Any other parameter is taken from the file.

        Returns
        -------
        DUFS
            A fitted selector; its random_state is the seed of the fit.

        Raises
        ------
        CheckpointError
            If the data, a parameter given here, the engine or the version is another one (the message names it), or if
            no state is usable.
        FileNotFoundError
            If there is no checkpoint.
        """
        from dufs_core.selection import checkpoint

        callbacks = tuple(parameters.pop("callbacks", ()))
        saving = checkpoint.find(callbacks)
        if saving is None:
            saving = checkpoint.Checkpoint(path)
            callbacks = (saving, *callbacks)
        settings = saving.read(path)
        if unknown := settings.keys() - cls().get_params():
            raise CheckpointError(f"{path} has settings that DUFS has not: {', '.join(sorted(unknown))}")
        return cls(**(settings | parameters | {"callbacks": callbacks})).fit(X)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the gates.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Real numbers, at least 2 rows, and more than an n_neighbors that is given. Not written to. On the host, or
            on a GPU: an array of CuPy, PyTorch, JAX or any library with DLPack, used where it lies. A sparse SciPy
            matrix or array (any format; CSR and CSC without conversion), or one of cupyx.scipy.sparse, is never made
            dense as a whole (with decoys, 512 rows of it are): see `dufs_core.data.sparse`. With batch_size, data on
            disk (numpy.memmap, h5py, zarr, AnnData's backed .X) are read a batch at a time: see
            `dufs_core.data.on_disk`.
        y : ignored

        Raises
        ------
        ValueError, TypeError
            If X or a parameter is not usable; the message gives the numbers and what to do.
        BackendUnavailableError
            If the backend asked for cannot compute here.
        MemoryLimitError
            If the fit would need more memory than there is (see max_memory).
        """
        from dufs_core.selection.fit_task import FitTask  # engines, search, tests: loaded with the first fit
        from dufs_core.selection.fit_warnings import warn_about_fit

        task = FitTask.begin(self, X, y)
        with task.accepted.device():
            best = task.run(task.engine())
        warn_about_fit(self, best, task.X.shape[0])
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.engine in ("auto", "sparse") and self.gate_noise == "batch"
        return tags


DUFS.__module__ = "dufs_core"  # where users find it, and where pickles look for it
