"""What importing costs, and what an installation contains."""

import configparser
import importlib
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(code, **how):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **how).stdout


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, dufs_core, dufs_core.baselines\n"
        "heavy = ('numba', 'cupy', 'sklearn', 'scipy', 'pandas', 'matplotlib', 'hypothesis')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_public_names_load_at_first_use():
    import dufs_core

    assert dufs_core.DUFS.__name__ == "DUFS"
    assert "DUFS" in dir(dufs_core)
    assert importlib.import_module("dufs_core.baselines").MCFS.__name__ == "MCFS"
    with pytest.raises(AttributeError, match="no attribute 'DUF'"):
        dufs_core.DUF  # noqa: B018


def test_every_folder_with_modules_is_a_package_of_the_installation():
    if not (ROOT / "setup.cfg").is_file():
        pytest.skip("setup.cfg is not beside the tests")
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    names = {file.parent.relative_to(ROOT).parts for file in (ROOT / "dufs_core").rglob("*.py")}
    names |= {("dufs_core", *file.parent.relative_to(ROOT).parts) for file in (ROOT / "kernels").rglob("*.py")}
    assert setup["options"]["packages"].split() == sorted(map(".".join, names))


def test_kernels_are_part_of_the_package():
    import dufs_core.kernels.panels as panels

    assert panels.__name__ == "dufs_core.kernels.panels"
    assert files("dufs_core").joinpath("py.typed").is_file()


def test_cuda_sources_are_part_of_the_package():
    from dufs_core.kernels import cuda

    for file in cuda.KERNELS:
        text = cuda.source(file)
        assert "#include" not in text
        assert "__global__" in text


def test_a_fit_without_a_home_and_without_a_cache(tmp_path):
    """No HOME, and a cache directory that cannot be made: kernels are compiled for the process alone."""
    (tmp_path / "file").write_text("")
    blocked = str(tmp_path / "file" / "cache")
    names = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "CUPY_CACHE_DIR")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    code = (
        "import warnings, numpy, dufs_core\n"
        "from dufs_core.baselines import LaplacianScore\n"
        "warnings.simplefilter('ignore')\n"
        "X = numpy.random.default_rng(0).normal(size=(12, 3))\n"
        "how = {'max_iter': 1, 'max_runs': 1, 'random_state': 0, 'backend': 'numpy', 'engine': 'dense'}\n"
        "fit = dufs_core.GatedLaplacian(**how).fit(X)\n"
        "print(fit.n_iter_, len(LaplacianScore().fit(X).order_))"
    )
    assert run(code, env=variables | {"NUMBA_CACHE_DIR": blocked, "XDG_CACHE_HOME": blocked}, cwd=tmp_path) == "1 3\n"
