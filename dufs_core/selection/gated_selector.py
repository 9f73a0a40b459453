"""What the two selectors by a gated Laplacian share: parameters of the graph and of the machine, and `fit`."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from dufs_core.data.groups import Told
from dufs_core.errors import did_you_mean, user_stacklevel
from dufs_core.selection.base import ColumnSelector
from dufs_core.selection.settings import Graph, Settings, check_group

if TYPE_CHECKING:
    from dufs_core.selection.procedure import Procedure

_PARTS = ("power", "bandwidth", "n_neighbors", "bandwidth_factor", "self_loops")
_REMOVED = {name: f"it is a part of graph now: graph=Graph({name}=...)" for name in _PARTS} | {
    "momentum": "leave it out: steps have none",
    "bandwidth_gradient": "leave it out: the gradient always flows through the bandwidth",
    "gate_noise": "it is a part of GatedLaplacian's conventions: conventions=Conventions(gate_noise=...)",
    "convention": 'use GatedLaplacian.preset("authors_code")',
}


@dataclass(kw_only=True, eq=False, repr=False)  # writes __init__ alone
class GatedSelector(ColumnSelector, ABC):
    """A selector by a gated Laplacian; see `dufs_core.DUFS` and `dufs_core.GatedLaplacian`."""

    n_features_to_select: int | float | None = None
    graph: Graph = Graph()  # noqa: RUF009 - it cannot change
    random_state: Any = None
    scaling: Literal["columns", "global", "none"] = "columns"
    backend: Literal["auto", "numpy", "cupy"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    max_memory: int | None = None
    n_jobs: int | None = None
    verbose: int = 0

    groups: ClassVar[Mapping[str, type[Settings]]] = {"graph": Graph}
    _elsewhere: ClassVar[Mapping[str, str]] = {}  # parameters that another selector has, and what to do

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        """Say of a parameter that is not one, or not one any more, what to write instead."""
        for name in parameters:
            if refusal := cls._refusal(name):
                raise TypeError(refusal)
        made: Self = super().__new__(cls)
        return made

    @classmethod
    def _refusal(cls, name: str) -> str | None:
        """What to do instead of giving a parameter that there is not; None where there is, or nothing to be said."""
        known: list[str] = cls._get_param_names()
        if name in known:
            return None
        advice = (_REMOVED | dict(cls._elsewhere)).get(name)
        said = f": {advice}" if advice else did_you_mean(name, known)
        return f"{cls.__name__} has no parameter {name!r}{said}" if said else None

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``graph__power=2`` replaces a part of a group."""
        whole: dict[str, Any] = {}
        for name, value in sorted(params.items(), key=lambda item: "__" in item[0]):  # groups before their parts
            group, _, part = name.partition("__")
            if part and group in self.groups:
                now = whole.get(group, self.group(group))
                check_group(group, now, self.groups[group])
                whole[group] = now.with_parts({part: value})
            elif refusal := self._refusal(group):
                raise ValueError(refusal)
            else:
                whole[name] = value
        super().set_params(**whole)
        return self

    def group(self, name: str) -> Any:
        """A group of parameters, also where a name stands for the one with the defaults."""
        value = getattr(self, name)
        return value if isinstance(value, Settings) else self.groups[name]()

    @abstractmethod
    def _procedure(self) -> Procedure:
        """What is done between scaled data and a selection: the one place where the two selectors part."""

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, covariates: Any = None) -> Self:
        """Learn which columns to select.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Real numbers, at least 2 rows, and more than graph.n_neighbors unless it is the default. Not written to. On
            the host, or on a GPU: an array of CuPy, PyTorch, JAX or any library with DLPack, used where it lies. A
            sparse SciPy matrix or array (any format; CSR and CSC without conversion), or one of cupyx.scipy.sparse, is
            never made dense as a whole (`dufs_core.DUFS` does it with some blocks): see `dufs_core.data.sparse`. Data
            on disk (numpy.memmap, h5py, zarr, AnnData's backed .X) `dufs_core.DUFS` reads twice, chunk by chunk, and
            keeps the scaled rows that take part; `GatedLaplacian` reads a batch at a time with batch_size, and else
            everything: see `dufs_core.data.on_disk`.
        y : ignored
        groups : array-like (n_samples,), optional
            Labels of any kind: batch, donor, plate, subject of each row. Columns are centred and scaled, and rows
            exchanged, within groups alone; rows that are alone in theirs take no part. `dufs_core.GatedLaplacian` takes
            groups with dense data in memory. In pipelines: ``set_fit_request(groups=True)`` (metadata routing).
        covariates : array-like (n_samples,) or (n_samples, c), optional
            Numbers that rows are known to differ by: age, depth, the total of counts. What splines of them explain is
            taken out of the columns, and rows that are alike in them are exchanged
            (`dufs_core.significance.covariates`); approximate. Of `dufs_core.DUFS` alone.

        Raises
        ------
        ValueError, TypeError
            If X, groups or a parameter is not usable; the message gives the numbers and what to do.
        BackendUnavailableError
            If the backend asked for cannot compute here.
        MemoryLimitError
            If the fit would need more memory than there is (see max_memory).
        """
        from dufs_core.selection.fit import FitTask  # engines, procedures, tests: loaded with the first fit

        result = FitTask.begin(self, X, y, Told(groups, covariates)).run()
        self._keep(result.attributes())
        for doubt in result.doubts:
            warnings.warn(doubt, stacklevel=user_stacklevel())
        return self

    def _keep(self, attributes: Mapping[str, Any]) -> None:
        """Copy the result of a fit, in the place of an earlier one's."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.__dict__.update(attributes)
