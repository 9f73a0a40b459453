"""DUFS, the scikit-learn selector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from dufs_core.backend import Array, Backend, get_backend, is_sparse_on_device, on_device
from dufs_core.backend.blas import one_blas_thread
from dufs_core.backend.memory import step_limit
from dufs_core.data.accept import check_samples, check_scales, unwrap
from dufs_core.data.dense import check_table, device_table, scale_columns
from dufs_core.data.on_disk import OnDiskMatrix, chunked_bytes, is_on_disk
from dufs_core.data.scaling import ScaledData
from dufs_core.data.sparse import scale_sparse
from dufs_core.errors import invalid_choice
from dufs_core.objective.chain import Objective
from dufs_core.objective.engines.choose import check_memory, get_engine
from dufs_core.objective.engines.cpu_sparse import sparse_step_size
from dufs_core.objective.ops import regulariser
from dufs_core.objective.optimizers import get_optimizer
from dufs_core.objective.protocol import Engine, Schedule, StepSize
from dufs_core.selection import checkpoint
from dufs_core.selection.base import ColumnSelector
from dufs_core.selection.discovery import Discovery, discover, discovery_bytes
from dufs_core.selection.diverse_ranking import diverse_order, diverse_ranking_bytes
from dufs_core.selection.fit_warnings import warn_about_fit
from dufs_core.selection.graph_rules import graph_rules, order_of
from dufs_core.selection.parameters import check_parameters, is_int, n_threads, n_wanted, seed_of
from dufs_core.selection.search import Outcome, Search
from dufs_core.significance.hsic import hsic_bytes
from dufs_core.significance.permutation_test import permutation_test_bytes
from dufs_core.significance.structure import MOST_GATES, ROWS
from dufs_core.training.loop import Callback, Train, train

_MANY_DRAWS, _FEW_DRAWS = 16, 4  # more rows average over more of the data, and cost more per draw
_SMALL_ROWS = 256
_DELTA, _AUTHORS_DELTA = 1e-6, 1e-6  # added to n sum(p); the authors add theirs to mean(p): 1e-6 n d in sums
_BELOW = 2.5  # columns that took no part: this many gate_sigma below every gate that did
_REPRESENTATIVES = 300  # so many are put in that order where no number of columns is asked for
_SPREAD = 0.5  # gate_sigma over which the order of the first run is laid out there


class DUFS(ColumnSelector):
    """Differentiable unsupervised feature selection with a gated Laplacian.

    Learns one stochastic gate z_k = clip(mu_k + gate_sigma eps_k, 0, 1), eps_k ~ N(0, 1), per column by
    maximising the score of the gated data Xt = X * z on its own neighbourhood graph:

        S = Tr(Xt' P^t Xt),  P = diag(K 1)^(-1) K,  K_ij = exp(-||xt_i - xt_j||^2 / b)
        lam >= 0:  minimise  -S / n + lam sum_k P(z_k > 0)          fdr=None, lam=None:  -S / (n sum_k P(z_k > 0))

    OnDiskMatrix: Lindenbaum, Shaham, Svirsky, Peterfreund and Kluger, arXiv 2007.04728.

    Which columns, and how many, says a competition with shuffled copies of all columns, decoys: the gates start from
    the few columns and decoys that structure is found among, every column is scored on the graph of the open ones, and
    so many are selected that in expectation at most a share `fdr` of them is nuisance
    (`dufs_core.significance.decoys`).

    Parameters
    ----------
    fdr : float or None, default 0.1
        False discovery rate: the expected share, among the selected columns, of columns that are independent of all
        others. In finite samples, if these are independent of one another, too. None: no decoys; gates of all columns
        start half open, and those with mu > 0 at the end are selected, as in the paper.
    lam : float or None, default None
        Price of an open gate in the regularised loss. None: the one that keeps 99% of shuffled columns shut; with
        fdr=None the parameter-free loss.
    n_features_to_select : int, float or None, default None
        None: those that `fdr` says. An int: exactly that many, best first. A float between 0 and 1: that share of the
        columns, at least one.
    ranking : "diverse", "evidence", "gates" or None, default None
        What comes first among the selected columns (fdr=None: the open ones). "evidence": the most `evidence_`.
        "gates": the largest mu, the paper's order. "diverse": columns that together say most about the
        structure of all of these, so that few of them do not repeat each other; for the first n_features_to_select
        of them, or 300 (`dufs_core.selection.diverse_ranking`). The others follow by their evidence, or mu. None:
        "diverse", with fdr=None "gates".
    power : int or None, default None
        t, the power of the random walk. Without self-loops P has negative eigenvalues, so that S can be negative for an
        odd power. None: 1; with fdr=None 2.
    bandwidth : "max", "median", "q90", float or None, default None
        b = bandwidth_factor times the largest, the median or the 0.9 quantile of the squared distances to the
        n_neighbors-th other row, read from the gated data at every step; a number is b itself. None: "median"; with
        fdr=None "max".
    n_neighbors : int or None, default None
        Counts other rows: a row is not its own neighbour. None: 5; with fdr=None 2.
    bandwidth_factor : float or None, default None
        None: 1; with fdr=None 2.
    bandwidth_gradient : bool, default True
        Whether the gradient flows through the bandwidth. Without it gates hardly close.
    self_loops : bool or None, default None
        Whether a row is its own neighbour (K_ii = 1, the paper's graph), or K_ii = 0. With thousands of columns all
        rows are nearly as far from one another as from their neighbours: a row then outweighs its neighbours, unless
        the bandwidth is so large that every row is one. Selections are judged (max_runs) with self-loops. None:
        False; with fdr=None True.
    gate_sigma : float, default 0.5
        Standard deviation of the gate noise.
    gate_noise : "batch" or "sample", default "batch"
        One noise vector for all rows (the paper), or one per row (the authors' code).
    n_draws : int or None, default None
        Noise draws per step, in antithetic pairs (eps, -eps); 1 or an even number. None: 16 for steps on up to 256
        rows, 4 on more.
    optimizer : "normalized", "sgd" or "adam", default "normalized"
        See `dufs_core.objective.optimizers`. "normalized" divides the gradient by its running root mean square, so
        that one
        learning rate serves any number of columns.
    learning_rate : float, default 0.005
        Average movement of a gate per step for "normalized" (gates decide within a distance of about 1).
    momentum : float, default 0.0
    max_iter : int, default 2000
        Most steps of one run.
    tol : float, default 0.01
        A run has converged when at most this share of the gates is undecided,
        -1.2 gate_sigma <= mu <= 1 + 1.2 gate_sigma.
    max_runs : int, default 6
        With fdr=None: most runs. A run ends the search whose selection has a permutation gap
        (`dufs_core.significance.permutation_test`) of at
        least 0.18, or 0.18 sqrt(10 / m) for m > 10 columns, at 100 rows (fewer rows ask for more); or whose
        columns each depend on another of them more than the strongest of all pairs does in 19 data sets with shuffled
        columns (`dufs_core.significance.hsic`). Otherwise the next run looks, with other draws, at the 20 columns
        that depend
        most on another one, later ones at the first 14, 10, 7, 5 of these. If none ends it, the run with the largest
        gap is kept, and a warning says so. 1 trains once.
    batch_size : int or None, default None
        Rows per step: near-equal batches of at most this size, every row once an epoch. None: all rows, with decoys
        a sample of at most 512, on which structure and scores are computed in any case.
    scaling : "columns", "global" or "none", default "columns"
        Mean 0 and variance 1 for each column; centred columns and one common scale (images); centred only.
    engine : "auto", "reference", "dense", "streaming", "sparse" or "cuda", default "auto"
        See `dufs_core.objective.engines`; the numbers are the same within rounding. "dense" holds n x n arrays,
        "streaming"
        takes memory in proportion to X; "auto" picks the faster of the two. "cuda" needs the CuPy backend, and sparse
        X has an engine of its own.
    backend : "auto", "numpy" or "cupy", default "auto"
        Where to compute. "auto": on the GPU where CuPy can, else with NumPy; sparse X on the side where it lives. X may
        live on either side.
    dtype : "float32" or "float64", default "float32"
    max_memory : int or None, default None
        Bytes that a fit may allocate, on the device for CuPy; None: what is available. A fit that would need more
        is refused before it allocates anything.
    n_jobs : int or None, default None
        Threads of "dense" and "streaming"; None or -1: all cores. Results do not depend on it.
    random_state : int, RandomState instance or None, default None
    verbose : int, default 0
        1: a progress bar on standard error.
    callbacks : sequence of callables, default ()
        Called with a `dufs_core.training.loop.StepInfo` after every step; one that returns True ends that run. A
        `dufs_core.selection.checkpoint.Checkpoint` among them saves the state of the fit instead.
    convention : "standard" or "authors_code", default "standard"
        "authors_code" follows the published code where it departs from the paper: learning_rate is per 1/d of the
        regularised loss, mu starts at 0.5 + truncated N(0, 0.01^2), minibatches always have batch_size rows and run
        on into the next shuffle, a bandwidth statistic below 1e-8 is replaced by 1, and 1e-6 is added to the mean open
        probability.

    Attributes
    ----------
    mu_ : ndarray (n_features,)
        Gate parameters; columns that took no part are below all others: those set aside after the first run, in its
        order, then the constant ones.
    gate_probabilities_ : ndarray (n_features,)
        P(z > 0).
    scores_ : ndarray (n_features,)
        x_k' P^t x_k / n, larger is better: the gated Laplacian score of every column, open or closed, on the final
        graph without the column itself; columns clipped at two standard deviations. With fdr=None mu_.
    q_values_ : ndarray (n_features,)
        The smallest fdr at which each column is selected. This and the next five with decoys alone.
    evidence_ : ndarray (n_features,)
        What competes: -log of the chance that a shuffled column has such a score on the final graph, on the one that
        the gates started from, or such a tie with another column, whichever says most.
    decoy_evidence_ : ndarray (n_decoys, n_features)
        The same of the decoys; NaN for columns that are constant, or vary in fewer than three of the rows looked at.
    smallest_fdr_ : float
        At which something is selected; 1 if nothing is at any.
    lam_ : float
        The price of an open gate.
    n_gates_ : int
        The columns and decoys that had gates; `history_` counts both.
    order_ : ndarray (n_features,) of int
        Column indices, best first, in the order of `ranking`; exact ties by column index.
    support_ : ndarray (n_features,) of bool
    bandwidth_, loss_ : float
        Means over the draws of the last step.
    excess_score_, p_value_ : float
        With fdr=None. How much better than shuffled columns those with mu > 0 are, and the p-value for these columns on
        the rows that chose them, which the choice makes small: see `LambdaPath` for one on other rows. 0.05 where their
        ties in pairs ended the search (see max_runs), whatever the gap: tight clusters have none.
    stopped_by_hsic_ : bool
        With fdr=None: whether they did.
    history_ : dict of ndarray (n_iter_,)
        step, loss, score (S / n), bandwidth, open_gates, undecided_gates of the run that was kept.
    n_iter_ : int
    n_runs_ : int
    converged_ : bool
    constant_features_ : ndarray of int
    excluded_features_ : ndarray of int
        Neither constant nor part of the run that was kept: with decoys those that no gate was given.
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

    def __init__(
        self,
        *,
        fdr: float | None = 0.1,
        lam: float | None = None,
        n_features_to_select: int | float | None = None,
        ranking: Literal["evidence", "gates", "diverse"] | None = None,
        power: int | None = None,
        bandwidth: Literal["median", "q90", "max"] | float | None = None,
        n_neighbors: int | None = None,
        bandwidth_factor: float | None = None,
        bandwidth_gradient: bool = True,
        self_loops: bool | None = None,
        gate_sigma: float = 0.5,
        gate_noise: Literal["batch", "sample"] = "batch",
        n_draws: int | None = None,
        optimizer: Literal["normalized", "sgd", "adam"] = "normalized",
        learning_rate: float = 0.005,
        momentum: float = 0.0,
        max_iter: int = 2000,
        tol: float = 0.01,
        max_runs: int = 6,
        batch_size: int | None = None,
        scaling: Literal["columns", "global", "none"] = "columns",
        engine: Literal["auto", "reference", "dense", "streaming", "sparse", "cuda"] = "auto",
        backend: Literal["auto", "numpy", "cupy"] = "auto",
        dtype: Literal["float32", "float64"] = "float32",
        max_memory: int | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        callbacks: Sequence[Callback | checkpoint.Checkpoint] = (),
        convention: Literal["standard", "authors_code"] = "standard",
    ) -> None:
        self.fdr = fdr
        self.lam = lam
        self.n_features_to_select = n_features_to_select
        self.ranking = ranking
        self.power = power
        self.bandwidth = bandwidth
        self.n_neighbors = n_neighbors
        self.bandwidth_factor = bandwidth_factor
        self.bandwidth_gradient = bandwidth_gradient
        self.self_loops = self_loops
        self.gate_sigma = gate_sigma
        self.gate_noise = gate_noise
        self.n_draws = n_draws
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.max_iter = max_iter
        self.tol = tol
        self.max_runs = max_runs
        self.batch_size = batch_size
        self.scaling = scaling
        self.engine = engine
        self.backend = backend
        self.dtype = dtype
        self.max_memory = max_memory
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.convention = convention

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Settings for wide data, or of the paper, or of the authors' published code, with `changes` on top.

        "wide", for more columns than rows: no self-loops, and half of the largest squared distance to the fifth other
        row as bandwidth, a graph of close neighbours; open columns ranked as representatives, since many end open
        (docs/defaults.md).

        "paper": one noise vector per batch, one draw, bandwidth 5 times the largest squared distance to the second
        other row, t = 2, plain SGD from mu = 1/2. "authors_code": noise per sample, bandwidth from the median
        distance to the nearest other row (their second neighbour counts the row itself) with factor 1, plain SGD, and
        ``convention="authors_code"``. These two: one run of at most 15,000 steps with learning rate 1 (for the
        regularised loss "paper" needs their rates, 0.3 to 1, divided by the number of columns).

        Raises ValueError for another name.
        """
        published: dict[str, Any] = {
            "fdr": None, "self_loops": True, "power": 2, "n_draws": 1, "optimizer": "sgd", "learning_rate": 1.0,
            "max_iter": 15_000, "max_runs": 1,
        }  # fmt: skip
        presets: dict[str, dict[str, Any]] = {
            "wide": {"fdr": None, "power": 2, "self_loops": False, "bandwidth": "max", "n_neighbors": 5,
                     "bandwidth_factor": 0.5, "ranking": "diverse"},
            "paper": published
            | {"gate_noise": "batch", "bandwidth": "max", "n_neighbors": 2, "bandwidth_factor": 5.0},
            "authors_code": published
            | {
                "gate_noise": "sample", "bandwidth": "median", "n_neighbors": 1, "bandwidth_factor": 1.0,
                "convention": "authors_code",
            },
        }  # fmt: skip
        if name not in presets:
            raise invalid_choice("preset", name, tuple(presets))
        return cls(**(presets[name] | changes))

    @classmethod
    def resume(cls, path: Any, X: Any, **parameters: Any) -> Self:
        """Go on with a fit from its checkpoint: the result is, bit by bit, that of a fit never interrupted.

        Parameters
        ----------
        path : path
            Of a `dufs_core.selection.checkpoint.Checkpoint`. If the last state is damaged, the one before it is used,
            with a
            warning.
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
            If the data, a parameter given here, the engine or the version is another one: the sentence says which; or
            if no state is usable.
        FileNotFoundError
            If there is no checkpoint.
        """
        callbacks = tuple(parameters.pop("callbacks", ()))
        found = checkpoint.Checkpoint(path)
        settings = found.read()
        given = checkpoint.find(callbacks)
        if given is None:
            callbacks = (found, *callbacks)
        else:
            given.take_over(found)
        return cls(**(settings | parameters | {"callbacks": callbacks})).fit(X)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the gates.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Real numbers, at least 3 rows (n_neighbors + 1). Not written to. On the host, or on a GPU: an array of CuPy,
            PyTorch, JAX or any library with DLPack, which is used where it lies. A sparse SciPy matrix or array
            (any format; CSR and CSC without conversion), or one of cupyx.scipy.sparse, is never made dense: see
            `dufs_core.data.sparse`. With batch_size,
            data on disk (numpy.memmap, h5py, zarr, AnnData's backed .X) are read a batch at a time: see
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
        X = unwrap(X)
        check_samples(X, y)
        bk, accepted = self._accept(X)
        place, X, seed = self._place(bk, X, accepted), accepted, seed_of(self.random_state)
        threads = n_threads(self.n_jobs)
        with place:
            evaluate = self._engine(bk, X, threads)
            best = self._train(bk, X, self._prepare(bk, X), evaluate, seed, train, threads)
        warn_about_fit(self, best, X.shape[0])
        return self

    def _accept(self, X: Any) -> tuple[Backend, Any]:
        """The backend, and X as an array on one of its sides. Raises ValueError for bad data or parameters."""
        on_gpu = is_sparse_on_device(X)
        if on_gpu:
            if self.backend == "numpy":
                raise ValueError(
                    'X is a sparse matrix on a GPU, and the NumPy backend computes on the CPU: use backend="cupy" '
                    "where CuPy works, or X.get()"
                )
            X = X.get()  # columns are scaled on the host
        on_disk = self._on_disk(X)
        if is_on_disk(X) and not on_disk:
            X = X[:]  # sparse rows on disk become sparse rows in memory
        bk = self._backend_for_sparse(on_gpu) if sparse.issparse(X) else get_backend(self.backend)
        if on_disk:
            check_table(X)
            validate_data(self, X, skip_check_array=True)
        elif on_device(X):
            X = device_table(bk, X)
            validate_data(self, X, skip_check_array=True)  # names and number of features
        else:
            X = validate_data(
                self, X, accept_sparse=("csr", "csc"), dtype="numeric", ensure_all_finite=False, ensure_min_samples=2
            )
        check_parameters(self, *X.shape)
        return bk, X

    def _place(self, bk: Backend, given: Any, accepted: Any) -> AbstractContextManager[Any]:
        """Makes the device that X lives on the current one."""
        if is_sparse_on_device(given):
            return bk.device_of(given.data)  # the matrix itself does not say where it is
        return bk.device_of(accepted) if on_device(accepted) else nullcontext()

    def _prepare(self, bk: Backend, X: Any) -> Any:
        """The scaled data, as `dufs_core.data.scaling.ScaledData`."""
        data = self._scaled(bk, X)
        if self.scaling == "none" and not on_device(X):
            check_scales(X)
        return data

    def _scaled(self, bk: Backend, X: Any) -> Any:
        if self._on_disk(X):
            source = OnDiskMatrix(bk, X, self.scaling, self.dtype)
            return ScaledData(source, source.constant)
        if sparse.issparse(X):
            by_rows = self._step_rows(X.shape[0]) < X.shape[0]
            return scale_sparse(X, self.scaling, self.dtype, by_rows=by_rows, bk=bk)
        data = scale_columns(X, self.scaling, self.dtype, bk.xp if on_device(X) else np)
        return ScaledData(bk.to_device(data.X), bk.to_host(data.constant))

    def _train(
        self, bk: Backend, X: Any, data: Any, evaluate: Engine, seed: int, train: Train, threads: int = 1
    ) -> Outcome:
        """Search, and set the fitted attributes."""
        n = data.X.shape[0]
        columns = np.flatnonzero(~data.constant)
        search = self._search(evaluate, train, n, len(columns))
        saving = checkpoint.find(self.callbacks)
        keeper = None if saving is None else saving.begin(bk, self, seed, X)
        with_blas = self.engine_ == "reference" and self._step_rows(n) > _SMALL_ROWS
        with nullcontext() if with_blas else one_blas_thread():
            found = None
            if self.fdr is None:
                best, n_runs = search.best(bk, data.X, columns, seed, keeper)
            else:
                all_rows = self.batch_size is not None
                found = discover(bk, data.X, columns, seed, search, keeper, threads, all_rows)
                best, n_runs = found.outcome._replace(first_mu=found.evidence[columns]), 1
            self._store(bk, data.constant, best, n_runs)
            self._judge(found)
            self._rank(bk, data.X)
        return best

    def _on_disk(self, X: Any) -> bool:
        """Whether batches are read from where X is stored."""
        return is_on_disk(X) and is_int(self.batch_size) and self._step_rows(X.shape[0]) < X.shape[0]

    def _step_rows(self, n: int) -> int:
        most = self.batch_size or (n if self.fdr is None else ROWS)
        return min(n, int(most))

    def _step_draws(self, n: int) -> int:
        return self.n_draws or (_MANY_DRAWS if self._step_rows(n) <= _SMALL_ROWS else _FEW_DRAWS)

    def _backend_for_sparse(self, on_gpu: bool) -> Backend:
        """For "auto" the side that X came from. Raises ValueError for what sparse data cannot have."""
        if self.gate_noise == "sample":
            raise ValueError(
                'gate_noise="sample" cannot take sparse X, because one gate a sample leaves no zeros after centring: '
                'use gate_noise="batch", or X.toarray() if it fits in memory'
            )
        if self.backend == "auto":
            return get_backend("cupy" if on_gpu else "numpy")
        return get_backend(self.backend)

    def memory_of(self, X: Any, threads: int) -> tuple[StepSize, int]:
        """What the cost and the memory of one step on X depend on, and the bytes kept beside it."""
        n, d = X.shape
        rules, decoys = graph_rules(self, n), self.fdr is not None
        fixed = not isinstance(rules.bandwidth, str)
        size = np.dtype(self.dtype).itemsize
        step = StepSize(
            self._step_rows(n), min(d, MOST_GATES) if decoys else d, self._step_draws(n), size, rules.power, fixed,
            self.gate_noise == "sample", threads,
        )  # fmt: skip
        if sparse.issparse(X) and decoys:
            data = sparse_step_size(step, X)[1]
        elif sparse.issparse(X):
            step, data = sparse_step_size(step, X)
        else:
            data = chunked_bytes(step.n, d, size) if self._on_disk(X) else n * d * size
        if step.n < n:
            data += step.n * step.d * size  # the batch in hand
        if decoys:
            data += n * step.d * size if self.batch_size is not None else 0
            after = diverse_ranking_bytes(n, d) if order_of(self) == "diverse" else 0
            return step._replace(after=max(discovery_bytes(n, d, size, threads), after)), data
        after = permutation_test_bytes(n, d, size)
        if self.max_runs > 1:  # pairs of columns are screened before another run
            after = max(after, hsic_bytes(n, d, size))
        if order_of(self) == "diverse":
            after = max(after, diverse_ranking_bytes(n, d))
        return step._replace(after=after), data

    def _engine(self, bk: Backend, X: Any, threads: int) -> Engine:
        """Choose the engine. Raises MemoryLimitError if the fit would not fit."""
        step, data = self.memory_of(X, threads)
        limit = step_limit(bk, data, self.max_memory)
        as_sparse, name = sparse.issparse(X) and self.fdr is None, self.engine
        if self.fdr is not None:  # few columns have gates, and they are dense
            few_rows = bk.name == "numpy" and step.n <= ROWS
            name = ("dense" if few_rows else "auto") if name in ("auto", "sparse") else name
        engine = get_engine(name, bk, threads, step, limit, as_sparse)
        self.engine_ = engine.name
        check_memory(bk, engine.name, step, data, self.max_memory)
        return engine

    def _search(self, evaluate: Engine, train: Train, n: int, d: int) -> Search:
        """The search that the parameters describe, for n rows and d columns that are not constant."""
        authors = self.convention == "authors_code"
        rows = self._step_rows(n)
        rate = self.learning_rate / max(d, 1) if authors and self.lam is not None else self.learning_rate
        return Search(
            Objective(
                lam=self.lam,
                bandwidth_gradient=self.bandwidth_gradient,
                **graph_rules(self, n)._asdict(),
                gate_sigma=self.gate_sigma,
                delta=_AUTHORS_DELTA * rows * d if authors else _DELTA,
                degenerate_rule="one" if authors else "data",
            ),
            evaluate,
            get_optimizer(self.optimizer, rate, self.momentum),
            Schedule(
                n_draws=self._step_draws(n),
                max_iter=self.max_iter,
                tol=self.tol,
                batch_size=self.batch_size,
                gate_noise=self.gate_noise,
                batches="wrap" if authors else "near_equal",
            ),
            max_runs=self.max_runs,
            noisy_start=authors,
            callbacks=tuple(c for c in self.callbacks if not isinstance(c, checkpoint.Checkpoint)),
            verbose=self.verbose,
            train=train,
        )

    def _store(self, bk: Backend, constant: Array, best: Outcome, n_runs: int) -> None:
        run, d = best.run, len(constant)
        lowest = float(run.mu.min()) if len(run.mu) else 0.0
        aside = min(lowest, 0.0) - _BELOW * self.gate_sigma
        mu = np.full(d, aside, dtype=self.dtype)
        mu[constant] = aside - self.gate_sigma
        if best.first_mu is not None:  # without an order of their own they would be selected by column index
            order = np.argsort(-bk.to_host(best.first_mu), kind="stable")
            mu[np.flatnonzero(~constant)[order]] -= _SPREAD * self.gate_sigma * np.arange(len(order)) / len(order)
        mu[best.columns] = bk.to_host(run.mu)
        self.mu_ = mu
        self.gate_probabilities_ = np.asarray(regulariser.probabilities(get_backend("numpy"), mu, self.gate_sigma))
        self.__dict__.pop("var_names_", None)  # of the AnnData object of an earlier fit
        self.history_ = run.history
        self.n_iter_ = run.n_iter
        self.n_runs_ = n_runs
        self.converged_ = run.converged
        self.bandwidth_ = float(run.history["bandwidth"][-1]) if run.n_iter else 1.0
        self.loss_ = float(run.history["loss"][-1]) if run.n_iter else 0.0
        for name in ("excess_score_", "p_value_", "stopped_by_hsic_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        if self.fdr is None:
            self.excess_score_, self.p_value_ = best.test
            self.stopped_by_hsic_ = best.tied
        self.constant_features_ = np.flatnonzero(constant)
        self.excluded_features_ = np.setdiff1d(np.flatnonzero(~constant), best.columns)
        self.backend_ = bk.name

    def _judge(self, found: Discovery | None) -> None:
        """What the competition with decoys found; without one columns are scored by their gates."""
        for name in ("evidence_", "decoy_evidence_", "q_values_", "smallest_fdr_", "lam_", "n_gates_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        self.scores_ = self.mu_.copy() if found is None else found.scores
        if found is not None:
            self.evidence_, self.decoy_evidence_ = found.evidence, found.decoy_evidence
            self.q_values_, self.smallest_fdr_, self.lam_ = found.q_values, found.smallest_rate, found.lam
            self.n_gates_ = found.n_gates

    def _rank(self, bk: Backend, X: Any) -> None:
        """The order of the columns, and the selection. X (n, d) as prepared."""
        d = len(self.mu_)
        count = None if self.n_features_to_select is None else n_wanted(self.n_features_to_select, d)
        order, candidates = order_of(self), self.mu_
        by, self.support_ = self.mu_, self.mu_ > 0
        if self.fdr is not None:
            by = self.mu_ if order == "gates" else self.evidence_
            self.support_ = self.q_values_ <= self.fdr
            candidates = np.where(self.support_, 1 + by - by.min(), -1)
        self.order_ = np.argsort(-by, kind="stable")
        if order == "diverse":
            first = diverse_order(bk, X, candidates, count or _REPRESENTATIVES)
            self.order_ = np.concatenate([first, self.order_[~np.isin(self.order_, first)]])
        if count is not None:
            self.support_ = np.zeros(d, dtype=bool)
            self.support_[self.order_[:count]] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.engine in ("auto", "sparse") and self.gate_noise == "batch"
        return tags
