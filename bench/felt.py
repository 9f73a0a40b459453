"""What a user waits for, beside the same with another checkout and beside other packages.

python -m bench.felt [--quick] [--only PART ...] [--against DIR] [--json FILE]    (FILE keeps records of other parts)

start: without compiled kernels ("cold"; `left`: seconds that what it started goes on after its end) and with them.
fits: shares of training and of the rest of the search (decoys, tests) in a second, profiled fit. baselines: `peer` is
skfeature's graph and function; ended after 90 s. planted: `reached` is the share of problems where the first r of the
ranking hold at least 99% as many real columns as in a whole fit of DUFS. steps: bench.fit's; `peer` is featselectlib.

Each measurement is a process of its own (planted: one a problem), begun when nothing is left of the one before, made
again where it compiled something. --against: all with the package in DIR too, in turns, by the programs of this
checkout (its gates are DUFS(fdr=None) where DIR has no GatedLaplacian). Medians (planted: means); one turn where it
takes more than 20 s.
"""

from __future__ import annotations

import cProfile
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pydoc import locate
from statistics import mean, median
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from bench import planted
from bench.common import ROOT, Records, markdown, matlab, parser, required
from bench.fit import STEPS
from bench.large import bladder
from bench.paper.data import read_idx
from bench.peers import missing
from dufs_core import DUFS, GatedLaplacian

PARTS = ("start", "fits", "baselines", "planted", "steps")
LONG, LIMIT = 20.0, 90.0  # seconds: of what is not repeated; of a process that is ended
LIBRARIES, IMPORT = "import numpy, scipy.linalg, scipy.sparse, sklearn.feature_selection", "from dufs_core import DUFS"
FIRST_FIT = f"""{IMPORT}; import time; from dufs_core.datasets import two_moons; X = two_moons().X
start = time.perf_counter(); DUFS(random_state=0).fit(X); print(time.perf_counter() - start)"""


def deviating(X: Any, d: int) -> Any:
    """The d columns of largest deviation, in their order."""
    return (X := X.toarray())[:, np.sort(np.argsort(-X.std(axis=0), kind="stable")[:d])]


def images(more: int = 0) -> Any:
    """3,000 images of MNIST (784 columns), and so many more columns, which are shuffled ones."""
    X = read_idx(*required("t10k-images-idx3-ubyte.gz"))[:3000].reshape(3000, -1)
    return np.hstack([X, np.random.default_rng(0).permuted(np.tile(X, 5)[:, :more], axis=0)])


DATA: dict[str, Callable[[], Any]] = {
    "Prostate-GE": lambda: matlab("Prostate-GE")[0], "ALLAML": lambda: matlab("ALLAML")[0],
    "PCMAC, sparse": lambda: sparse.csr_array(matlab("PCMAC")[0].astype(np.float32)),
    "bladder, 181 x 12533": lambda: deviating(bladder()[:181], 12_533), "MNIST, 3000 x 784": images,
    "pixraw10P": lambda: matlab("pixraw10P")[0], "bladder, sparse": bladder,
    "bladder, 2000 x 16000": lambda: deviating(bladder()[:2000], 16_000),
    "COIL20": lambda: matlab("COIL20")[0], "MNIST, 3000 x 4000": lambda: images(3216),
}  # fmt: skip
GATES = {"Prostate-GE": {}, "COIL20": {}, "MNIST, 3000 x 784": {"batch_size": 500}}
FITS = [*((name, "decoys", {}) for name in list(DATA)[:8]), *((name, "gates", more) for name, more in GATES.items())]
SEARCHES = (("competition", "run"), ("discovery", "discover"), ("search", "run"))  # the second: of earlier states
LARGE = {"bladder, 2000 x 16000": (16, 16_000), "MNIST, 3000 x 4000": (10, 4000)}  # classes, columns
SKFEATURE = {"LS": "similarity_based.lap_score.lap_score", "MCFS": "sparse_learning_based.MCFS.mcfs",
             "NDFS": "sparse_learning_based.NDFS.ndfs"}  # fmt: skip
EARLIER = """import dufs_core
if not hasattr(dufs_core, "GatedLaplacian"):
    dufs_core.Graph = dict
    dufs_core.GatedLaplacian = lambda graph={}, **settings: dufs_core.DUFS(fdr=None, **graph, **settings)
"""  # for the package in DIR
seconds_of = partial(timeit, setup="gc.enable()", number=1)


def whole_fit(name: str, method: str, settings: dict[str, Any], profiled: bool) -> dict[str, float]:
    X, make = DATA[name](), DUFS if method == "decoys" else GatedLaplacian
    small, profile = sparse.random(60, 40, 0.5, "csr", np.float32, random_state=0), cProfile.Profile()
    few = {} if method == "decoys" else {"max_iter": 2}
    make(**few, **settings).fit(small if sparse.issparse(X) else small.toarray())  # loads what fits need
    selector = make(random_state=0, **settings)
    numbers = {"seconds": seconds_of(lambda: selector.fit(X))}
    if profiled:
        whole = seconds_of(lambda: profile.runcall(selector.fit, X))
        spent = {
            (Path(c.co_filename).stem, c.co_name): s for c, _, _, s, *_ in profile.getstats() if type(c) is not str
        }
        training = spent.get(("loop", "train"), 0.0)  # none with decoys
        search = next(spent[one] for one in SEARCHES if one in spent)
        numbers |= {"training": training / whole, "rest_of_search": (search - training) / whole}
    return numbers


def baseline(method: str, name: str, c: int, r: int) -> dict[str, float]:
    X = DATA[name]()
    planted.warm_up(method, 100)
    p = planted.Planted(X, np.arange(X.shape[1]) < r, np.arange(len(X)) % c, np.ones(0))  # asks for r, c classes
    return {"seconds": seconds_of(lambda: planted.METHODS[method].run(p, 0, 0.1))}


def skfeature(method: str, name: str, c: int, r: int) -> dict[str, float]:
    from skfeature.utility.construct_W import construct_W

    function: Any = locate(f"skfeature.function.{SKFEATURE[method]}")
    X, start = DATA[name]().astype(np.float64), time.perf_counter()
    Z = StandardScaler().fit_transform(X)
    W = construct_W(Z, metric="euclidean", weight_mode="heat_kernel", k=5, t=Z.shape[1] ** 0.5)
    function(Z, W=W, mode="raw", n_selected_features=r, n_clusters=c)
    return {"seconds": time.perf_counter() - start}


def same_selection(methods: Sequence[str], *problem: Any) -> dict[str, dict[str, float]]:
    p, rows, seed = planted.planted(*problem), {}, problem[-1]
    DUFS().fit(p.X)  # the first fit of this size takes longer
    calls = {name: partial(planted.METHODS[name].run, p, seed, 0.1) for name in methods}
    for name, call in calls.items():
        planted.warm_up(name, len(p.X))
        start = time.perf_counter()
        first = call().order[: p.r]
        rows[name] = {"seconds": time.perf_counter() - start, "top_r": float(p.truth[first].mean())}
    return {name: row | {"reached": float(row["top_r"] >= 0.99 * rows["DUFS"]["top_r"])} for name, row in rows.items()}


class Package(NamedTuple):
    root: Path
    kernels: str  # the folder of what is compiled


def process(package: Package, *arguments: str, timeout: float | None = None) -> tuple[float, str, float]:
    """Seconds of a Python process, its last line (RuntimeError: if it fails), seconds that what it started goes on."""
    env = os.environ | {"PYTHONPATH": str(package.root), "NUMBA_CACHE_DIR": package.kernels}
    command = [sys.executable, "-W", "ignore", *arguments]
    with tempfile.TemporaryFile("w+") as out:  # the end of a pipe would wait for what is left
        start = time.perf_counter()
        code = subprocess.run(command, stdout=out, stderr=out, cwd=package.root, env=env, timeout=timeout).returncode
        over = time.perf_counter()
        while not subprocess.run(["grep", "-qsaF", package.kernels, *Path("/proc").glob("[0-9]*/environ")]).returncode:
            time.sleep(0.05)  # as long as a process has this folder in its environment
        left = time.perf_counter() - over
        out.seek(0)
        line = [f"ended with {code}", *out.read().splitlines()][-1]
    if code:
        raise RuntimeError(line)
    return over - start, line, left


def inside(package: Package, program: str, *arguments: Any, timeout: float | None = None) -> Any:
    """What a function of the benchmarks gives in a process with a package; `timeout` seconds where it was ended."""
    code = f"{EARLIER}import sys; sys.path.insert(0, {str(ROOT)!r}); from bench.felt import main; main()"
    one, files = json.dumps([program, *arguments]), -1
    try:
        while files != (files := len([*Path(package.kernels).rglob("*")])):  # once more where it compiled something
            line = process(package, "-c", code, "--one", one, timeout=timeout)[1]
    except subprocess.TimeoutExpired:
        return {"seconds": timeout}
    return json.loads(line)


def first_command(package: Package, turn: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        fresh = package._replace(kernels=folder)
        (cold, _, left), (again, _, _) = (process(fresh, "-m", "dufs_core", "fit", "two-moons") for _ in range(2))
    return {"fit two-moons, cold": {"seconds": cold, "left": left}, "fit two-moons, warm": {"seconds": again}}


def first_fit(package: Package, turn: int) -> Any:
    python, libraries, ours, fitted = (process(package, "-c", code) for code in ("pass", LIBRARIES, IMPORT, FIRST_FIT))
    found = {"Python": python[0], "NumPy, SciPy, scikit-learn": libraries[0]}
    found |= {f"{IMPORT}, beyond these": ours[0] - libraries[0], "first fit": float(fitted[1])}
    return {what: {"seconds": seconds} for what, seconds in found.items()}


def beside(ours: Sequence[Any], theirs: Sequence[Any], package: Package, turn: int) -> Any:
    """Numbers of ours, and seconds of a peer's program where there is one."""
    numbers = inside(package, *ours, timeout=LIMIT)
    if theirs and package.root == ROOT:
        numbers["peer"] = inside(package, *theirs, timeout=LIMIT)["seconds"]
        numbers["peer_over_ours"] = numbers["peer"] / numbers["seconds"]
    return numbers


def cases(parts: Sequence[str], quick: bool) -> Iterator[tuple[str, str, Callable[[Package, int], Any], int]]:
    """The part, what is measured, by what (of the package and the turn), and how often."""
    if "start" in parts:
        yield "start", "fit two-moons", first_command, 2 if quick else 5
        yield "start", "first fit", first_fit, 3 if quick else 7
    for name, *how in ([FITS[i] for i in (0, 2, 8)] if quick else FITS) if "fits" in parts else ():
        fit = partial(lambda one, package, turn: inside(package, *one, turn == 0), ("felt.whole_fit", name, *how))
        method, settings = how
        what = [name, method, *(f"{key}={value}" for key, value in settings.items())]
        yield "fits", ", ".join(what), fit, 2 if quick else 3
    for name, (c, d) in LARGE.items() if "baselines" in parts and not quick else ():
        for method, r in [(m, 100) for m in ("LS", "MCFS", "NDFS", "LLCFS", "SRCFS", "CAE")] + [("MCFS", d // 2)]:
            peer = ("felt.skfeature", method, name, c, r) if method in SKFEATURE and find_spec("skfeature") else ()
            ours = ("felt.baseline", method, name, c, r)
            yield "baselines", f"{method}, {r} of {name}", partial(beside, ours, peer), 3
    if "planted" in parts:
        methods = [name for name, method in planted.METHODS.items() if not (quick and method.slow)]
        one, sets = ("felt.same_selection", methods), planted.QUICK_SETS if quick else planted.SETS
        yield "planted", "all", lambda package, turn: inside(package, *one, sets[turn], 20, 2000, 0), len(sets)
    for name in (list(STEPS)[: 2 if quick else None]) if "steps" in parts else ():
        peer = () if missing("featselectlib") else ("fit.run", "featselectlib, steps", name, 0, 0)
        yield "steps", name, partial(beside, ("fit.run", "ours, steps", name, 0, 0), peer), 1 if quick else 3


def measured(part: str, what: str, run: Any, times: int, packages: Sequence[Package]) -> Iterator[dict[str, Any]]:
    """The records of one of `cases`."""
    values: dict[str, dict[str, list[float]]] = {}
    for turn in range(times):
        for prefix, package in zip(("", "before_"), packages, strict=False):
            rows = run(package, turn)
            for name, row in ({what: rows} if "seconds" in rows else rows).items():
                for key, value in row.items():
                    values.setdefault(name, {}).setdefault(prefix + key, []).append(value)
        if part != "planted" and any(row["seconds"][0] > LONG for row in values.values()):
            break
    for name, lists in values.items():
        record = {key: (mean if part == "planted" else median)(x) for key, x in lists.items()}
        if "before_seconds" in record:
            record["faster"] = record["before_seconds"] / record["seconds"]
        yield {"part": part, "what": name} | {key: float(f"{value:.3g}") for key, value in record.items()}


def table(records: Sequence[dict[str, Any]]) -> str:
    columns = ("part", "what", "seconds", "before_seconds", "faster")
    rows = [[*map(r.get, columns), ", ".join(f"{k} {v}" for k, v in r.items() if k not in columns)] for r in records]
    return markdown([*columns, "more"], rows)


def main(argv: list[str] | None = None) -> None:
    p = parser(__doc__)
    p.add_argument("--quick", action="store_true", help="few data sets, few turns, no baselines")
    p.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    p.add_argument("--against", metavar="DIR", type=Path, help="a checkout whose package is measured too")
    a = p.parse_args(argv)
    if a.one:
        program: Any = locate(f"bench.{a.one[0]}")  # a child's
        return print(json.dumps(program(*a.one[1:])))
    if a.against and not (a.against / "dufs_core").is_dir():
        p.error(f"--against takes a folder with a folder dufs_core in it; {a.against} has none")
    for package in filter(lambda name: missing(name) or not find_spec(name), ("featselectlib", "skfeature")):
        print(f"{package} is not installed (bench/README.md): left out", flush=True)
    records = Records(a.json, lambda record: (record["part"], record["what"]), table)
    records.kept = {key: record for key, record in records.kept.items() if key[0] not in a.only}
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        packages = [Package(ROOT, here), *([Package(a.against.resolve(), there)] if a.against else [])]
        for case in cases(a.only, a.quick):
            try:
                for record in measured(*case, packages):
                    records.add(record)
            except RuntimeError as error:
                records.add({"part": case[0], "what": case[1], "failed": str(error)})
            records.save()
    print(records.table)


if __name__ == "__main__":
    main()
