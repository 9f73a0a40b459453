"""Job files: what they mean, and a sentence for every mistake."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dufs_core.cli.sweep import JobError, read_job

MOONS = '[[data]]\npath = "two-moons"\n'


@pytest.fixture
def job(tmp_path):
    """Reads a job file with the text given, beside a table x.npy and a text table x.csv."""
    np.save(tmp_path / "x.npy", np.eye(6))
    (tmp_path / "x.csv").write_text("name,a,b\n" + "".join(f"s{i},{i},{i * i}\n" for i in range(6)))

    def read(text):
        (tmp_path / "job.toml").write_text(text, errors="surrogateescape")
        return read_job(tmp_path / "job.toml")

    return read


def test_every_data_set_with_every_combination_and_seed(job):
    found = job(
        'seeds = [3, 4]\nthreads = 2\n[[data]]\npath = "x.npy"\n[[data]]\npath = "x.csv"\nname = "text"\n'
        'index_column = "name"\nsettings = {batch_size = 7}\n[settings]\nmethod = "gates"\nmax_iter = 7\n'
        '[grid]\nlam = ["none", 0.5]\npower = [1, 2, 3]\n'
    )
    assert len(found.fits) == 2 * 2 * 3 * 2
    assert len({fit.id for fit in found.fits}) == len(found.fits)
    assert found.varied == ("lam", "power")
    first, last = found.fits[0], found.fits[-1]
    assert (first.data.name, first.seed, first.settings["lam"], first.settings["batch_size"]) == ("x", 3, None, None)
    assert (last.data.name, last.seed, last.settings["lam"], last.settings["power"]) == ("text", 4, 0.5, 3)
    assert (last.settings["batch_size"], last.settings["max_iter"], last.threads) == (7, 7, 2)
    assert dict(last.data.reading) == {"index_column": ("name",)}
    assert [fit.data.name for fit in found.fits] == ["x"] * 12 + ["text"] * 12


def test_a_grid_over_truth_values(job):
    found = job('[[data]]\npath = "x.npy"\n[grid]\nself_loops = [true, false]\n')
    assert [fit.settings["self_loops"] for fit in found.fits] == [True, False]
    assert len({fit.id for fit in found.fits}) == 2


def test_identities_depend_on_what_results_depend_on(job, tmp_path, monkeypatch):
    def identity(text):
        (fit,) = job(text).fits
        return fit.id

    plain = identity('[[data]]\npath = "x.npy"\n')
    assert plain == identity(
        'checkpoint_seconds = 1\n[[data]]\npath = "x.npy"\nname = "other"\n'
        '[settings]\nfdr = 0.1\npower = 1\nmethod = "decoys"\n'
    )
    assert plain != identity('[[data]]\npath = "x.npy"\n[settings]\nfdr = 0.2\n')
    assert plain != identity('[[data]]\npath = "x.npy"\n[settings]\nmethod = "gates"\n')
    assert plain != identity('[[data]]\npath = "x.npy"\n[settings]\npower = 3\n')
    assert plain != identity('seeds = [1]\n[[data]]\npath = "x.npy"\n')
    assert plain != identity('[[data]]\npath = "x.npy"\ntranspose = true\n')
    monkeypatch.setattr("dufs_core.cli.sweep.job_file.__version__", "99")
    assert plain != identity('[[data]]\npath = "x.npy"\n')
    monkeypatch.undo()
    np.save(tmp_path / "other.npy", 2 * np.eye(6))
    assert plain != identity('[[data]]\npath = "other.npy"\n')


def test_groups_are_a_part_of_the_identity_where_they_are_given(job):
    text = '[[data]]\npath = "x.csv"\nindex_column = 0\n'
    plain, named, numbered = (job(text + more).fits[0] for more in ("", 'groups = "a"\n', "groups = 1\n"))
    assert "groups" not in dict(plain.data.reading)
    assert dict(named.data.reading) == {"index_column": ("0",), "groups": "a"}
    assert dict(numbered.data.reading)["groups"] == "1"
    assert len({fit.id for fit in (plain, named, numbered)}) == 3
    assert numbered.id == job(text + 'groups = "1"\n').fits[0].id


def test_covariates_are_a_part_of_the_identity_where_they_are_given(job):
    text = '[[data]]\npath = "x.csv"\nindex_column = 0\n'
    more = ("", 'covariates = "a"\n', "covariates = 1\n", 'covariates = ["a", 1]\n')
    plain, named, numbered, both = (job(text + line).fits[0] for line in more)
    assert "covariates" not in dict(plain.data.reading)
    assert dict(named.data.reading) == {"index_column": ("0",), "covariates": ("a",)}
    assert dict(both.data.reading)["covariates"] == ("a", "1")
    assert len({fit.id for fit in (plain, named, numbered, both)}) == 4
    assert numbered.id == job(text + 'covariates = ["1"]\n').fits[0].id


def test_rows_are_a_setting_of_decoys(job):
    (plain,) = job(MOONS).fits
    (said,) = job(MOONS + '[settings]\nrows = "independent"\n').fits
    (series,) = job(MOONS + '[settings]\nrows = "series"\n').fits
    assert plain.id == said.id != series.id
    found = job(MOONS + '[grid]\nrows = ["independent", "series"]\n')
    assert [fit.id for fit in found.fits] == [plain.id, series.id]
    assert found.varied == ("rows",)
    (gates,) = job(MOONS + '[settings]\nmethod = "gates"\n').fits
    assert "rows" not in gates.settings  # and so the identities of gates are those from before there were rows


def test_identities_stay_what_they_are(job, monkeypatch):
    """Of a fit without groups: one that is done is found again. The number is that of an earlier commit."""
    monkeypatch.setattr("dufs_core.cli.sweep.job_file.__version__", "1")
    (fit,) = job('[[data]]\npath = "x.csv"\nlabels = "a"\nindex_column = "name"\n').fits
    assert replace(fit, settings={"power": 1}).id == "98b90e3d67e07968"


def test_numbers_are_the_same_however_they_are_written(job):
    (fit,) = job(MOONS + '[settings]\nmethod = "gates"\n[grid]\nlam = [1]\nn_features_to_select = [1]\n').fits
    assert [type(fit.settings[name]) for name in ("lam", "n_features_to_select")] == [float, int]
    again = [job(MOONS + f'[settings]\nmethod = "gates"\ntol = {zero}\n') for zero in ("0", "0.0")]
    assert again[0].fits[0].id == again[1].fits[0].id
    assert again[0].described == again[1].described


def test_a_grid_without_parameters_is_one_fit_for_each_seed(job):
    found = job("seeds = [5, 6]\n" + MOONS + "[grid]\n")
    assert [fit.seed for fit in found.fits] == [5, 6]
    assert found.varied == ()


def test_paths_may_name_environment_variables(job, tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    assert job('[[data]]\npath = "$FOLDER/x.npy"\n').fits[0].data.path == str(tmp_path / "x.npy")


def test_a_grid_over_rates(job):
    found = job(MOONS + "[grid]\nfdr = [0.05, 0.2]\n")
    assert [fit.settings["fdr"] for fit in found.fits] == [0.05, 0.2]


def test_a_grid_over_methods(job):
    found = job(MOONS + '[grid]\nmethod = ["decoys", "gates"]\n')
    assert [fit.settings.get("fdr") for fit in found.fits] == [0.1, None]
    assert [fit.settings["max_runs"] for fit in found.fits[1:]] == [6]
    with pytest.raises(JobError, match='method "decoys" has no parameter \'max_runs\': it is one of method "gates"'):
        job(MOONS + "[settings]\nmax_runs = 2\n")
    with pytest.raises(JobError, match="method must be one of 'decoys', 'gates'; got 'gate'"):
        job(MOONS + '[settings]\nmethod = "gate"\n')


def test_presets(job):
    (fit,) = job(MOONS + '[settings]\npreset = "paper"\nlearning_rate = 0.5\n').fits
    assert (fit.settings["bandwidth_factor"], fit.settings["learning_rate"]) == (5.0, 0.5)


def test_what_is_described_is_json(job):
    described = job(MOONS + "noise = 0.2\n[grid]\nfdr = [0.1]\n").described
    assert json.loads(json.dumps(described))["data"]["two-moons"]["reading"]["noise"] == 0.2


MISTAKES = {
    "not TOML": ("seeds = [", "job.toml is not a TOML file"),
    "no data": ("seeds = [1]", r"at least one \[\[data\]\]"),
    "data as a table": ('[data]\npath = "x.npy"', r"at least one \[\[data\]\]"),
    "no path": ('[[data]]\nname = "x"', r"\[\[data\]\] number 1 needs a path"),
    "no such file": ('[[data]]\npath = "y.npy"', "y.npy cannot be read: no such file"),
    "a directory": ('[[data]]\npath = "."\nname = "here"', "cannot be read: is a directory"),
    "variable not set": ('[[data]]\npath = "$NO_SUCH_ONE/x.npy"', "environment variable that is not set"),
    "unknown key": (MOONS + "[gird]\nlam = [1]", "no 'gird'; did you mean 'grid'"),
    "unknown reading": (MOONS + "label = 1", "number 1 has no 'label'"),
    "moons of text": (MOONS + 'noise = "much"', "noise must be a number; got 'much'"),
    "moons of one sample": (MOONS + "samples = 1", "at least 2 samples"),
    "unknown parameter": (MOONS + "[settings]\nlamda = 1", r"\[settings\] has no 'lamda'; did you mean 'lam'"),
    "a seed as parameter": (MOONS + "[grid]\nrandom_state = [1]", r"seeds are listed as seeds"),
    "threads as parameter": (MOONS + "[settings]\nn_jobs = 1", "set by threads = 1"),
    "seeds": (MOONS.join(["seeds = 3\n", ""]), "seeds must be a list"),
    "seed twice": ("seeds = [1, 1]\n" + MOONS, "would be computed twice"),
    "threads": ("threads = 0\n" + MOONS, "threads must be a whole number from 1 to 1024; got 0"),
    "seconds": ('checkpoint_seconds = "x"\n' + MOONS, "checkpoint_seconds must be a number"),
    "grid of one": (MOONS + "[grid]\nlam = 1", r"as in lam = \[1, 2\]"),
    "value twice": (MOONS + '[settings]\nmethod = "gates"\n[grid]\nlam = [1, 2, 1]', "would be computed twice"),
    "value twice, written in two ways": (
        MOONS + '[settings]\nmethod = "gates"\n[grid]\nlam = [1, 1.0]',
        "would be computed twice",
    ),
    "list without values": (
        MOONS + "[grid]\nlam = []",
        r"lists values to combine, as in lam = \[1, 2\]; got lam = \[\]",
    ),
    "both places": (MOONS + "[settings]\nlam = 1\n[grid]\nlam = [1]", r"lam stands in \[grid\] and in the settings"),
    "bad value": (MOONS + "[grid]\npower = [2, 0]", "power must be a whole number of at least 1; got 0"),
    "bad rate": (MOONS + "[settings]\nfdr = 1", "fdr is a false discovery rate, above 0 and below 1"),
    "bad type": (MOONS + '[settings]\nmethod = "gates"\nlam = "much"', "lam must be None"),
    "unknown engine": (
        MOONS + '[settings]\nmethod = "gates"\nengine = "denss"',
        "engine must be one of .*; got 'denss'; did you mean 'dense'",
    ),
    "unknown backend": (MOONS + '[grid]\nbackend = ["torch"]', "backend must be one of .*; got 'torch'"),
    "bad preset": (MOONS + '[settings]\npreset = "mine"', "preset must be"),
    "grid of presets": (MOONS + '[grid]\npreset = ["paper"]', r"\[grid\] has no 'preset'"),
    "same name": (MOONS + MOONS, 'two data sets are called "two-moons"'),
    "same data": (MOONS + MOONS + 'name = "b"', "would be computed twice"),
    "nested": ("a = " + "[" * 100_000, "job.toml is not a TOML file"),
    "endless number": ("threads = " + "9" * 5000, "job.toml is not a TOML file"),
    "endless hexadecimal number": ("threads = 0x" + "f" * 5000, "job.toml: "),
    "not UTF-8": ("a = '\udcff'", "job.toml is not a TOML file"),
    "number beyond float64": (MOONS + "[settings]\nlam = 1" + "0" * 400, "int too large"),
    "moons beyond float64": (MOONS + "noise = 1" + "0" * 400, "int too large"),
    "moons beyond the memory": (MOONS + "samples = 1000000000000", "would take 240 TB; .* are available"),
    "seconds beyond time": ("checkpoint_seconds = 1" + "0" * 400 + "\n" + MOONS, "a number from 0 to 10\\^9"),
    "home of nobody": ('[[data]]\npath = "~nobody-of-this-name/x"', "home directory"),
    "a path with a zero": ('[[data]]\npath = "a\\u0000b"\nname = "x"', "null"),
    "too many fits": (
        MOONS
        + "[grid]\n"
        + "".join(f"{name} = {list(range(1, 201))}\n" for name in ("power", "max_iter", "n_neighbors")),
        "make 8,000,000 fits, more than 1,000,000",
    ),
    "groups of a type": (
        '[[data]]\npath = "x.csv"\ngroups = ["a", "b"]',
        r"groups must be the name or number of a column; got \['a', 'b'\]",
    ),
    "covariates of a type": (
        '[[data]]\npath = "x.csv"\ncovariates = 0.5',
        r"covariates must be the name or number of a column, or a list of them; got 0.5",
    ),
    "covariates of moons": (MOONS + 'covariates = "a"', "number 1 has no 'covariates'"),
    "rows of no kind": (MOONS + '[settings]\nrows = "serie"', "rows must be .*; got 'serie'"),
    "rows of gates": (
        MOONS + '[settings]\nmethod = "gates"\nrows = "series"',
        """method "gates" has no parameter 'rows'""",
    ),
    "groups of moons": (MOONS + 'groups = "a"', "number 1 has no 'groups'"),
    "reading of a type": ('[[data]]\npath = "x.npy"\ntranspose = 1', "transpose must be true or false; got 1"),
}


@pytest.mark.parametrize(("text", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(job, text, sentence):
    with pytest.raises(JobError, match=sentence) as caught:
        job(text)
    assert "\n" not in str(caught.value)


def test_all_mistakes_at_once(job):
    with pytest.raises(JobError) as caught:
        job('threads = 0\n[[data]]\npath = "y.npy"\n[settings]\nlamda = 1\n[grid]\npower = 2\n')
    for sentence in (
        "threads must be",
        "'lamda'; did you mean",
        r"as in power = [1, 2]",
        "y.npy cannot be read: no such file",
    ):
        assert sentence in str(caught.value)


def test_the_guide_s_job_file(tmp_path, monkeypatch):
    guide = Path(__file__).resolve().parents[2] / "docs" / "batch-jobs.md"
    (text,) = re.findall("```toml\n(.*?)```", guide.read_text(), re.DOTALL)
    (tmp_path / "job.toml").write_text(text, errors="surrogateescape")
    (tmp_path / "cells.mat").write_bytes(b"not read before it is fitted")
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    assert len(read_job(tmp_path / "job.toml").fits) == 2 * 4 * 2 * 5
