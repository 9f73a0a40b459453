"""The most likely mistakes of a first hour: every one is answered with what was wrong and what to do."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dufs_core import DUFS, GatedLaplacian, LambdaPath, Trajectory, report
from dufs_core.baselines import LaplacianScore
from dufs_core.errors import BackendUnavailableError, DegenerateBandwidthWarning, DufsWarning, SelectionWarning
from dufs_core.inspection import plotting
from tests.generators import gated

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6))
LABELS = np.arange(40) % 3
NAMES = list("abcdef")
DATES = np.datetime64("2020-01-01") + np.arange(240).reshape(40, 6)


def quick(**changes):
    quick_settings = {"max_iter": 3, "max_runs": 1, "n_draws": 2, "random_state": 0, "n_features_to_select": 1}
    return gated(**quick_settings | {"backend": "numpy"} | changes)


def changed(row, column, value, dtype=float):
    out = X.astype(dtype)
    out[row, column] = value
    return out


def frame(**columns):
    return pd.DataFrame({"height": X[:, 0], "width": X[:, 1], **columns})


class LikeAnnData:
    obs = var = uns = X = None


WRONG_DATA = {
    "labels": (LABELS, ValueError, r"got 1D array instead \(shape=\(40,\)\).*If it is labels, give the data"),
    "a list of labels": (LABELS.tolist(), ValueError, r"got 1D array .*If it is labels, give the data"),
    "one sample": (X[0], ValueError, r"got 1D array instead.*Reshape your data"),
    "images": (
        X.reshape(40, 3, 2), ValueError,
        r"dim 3, while dim <= 2 is required; its shape is \(40, 3, 2\).*X.reshape\(len\(X\), -1\)",
    ),
    "a list of images": (list(X.reshape(40, 3, 2)), ValueError, r"dim 3, .*shape is \(40, 3, 2\).*images become rows"),
    "images as lists": ([[[1, 2], [3, 4]]] * 5, ValueError, r"dim 3, .*shape is \(5, 2, 2\).*images become rows"),
    "texts": (["a text", "another"], ValueError, r"X holds 2 texts \(list\).*TfidfVectorizer"),
    "a column of texts": (np.array(["a text", "another"]), ValueError, r"X holds 2 texts \(ndarray\).*TfidfVectorizer"),
    "one row": (X[:1], ValueError, r"1 sample\(s\) .* minimum of 2 is required"),
    "NaN": (changed(3, 2, np.nan), ValueError, r"1 of 240 values, the first in column 2. Drop those rows"),
    "infinity": (changed(3, 2, np.inf), ValueError, r"NaN or infinity: 1 of 240 values"),
    "None among objects": (changed(3, 2, None, object), ValueError, r"1 of 240 values, the first in column 2. Drop"),
    "a column of text": (
        frame(species=list("xyzt") * 10), ValueError,
        r"1 of the 3 columns of X do not hold numbers: 'species' \(the first begins with 'x'\). Leave out .*encode",
    ),
    "a column of long texts": (frame(text=["word " * 200] * 40), ValueError, r"first begins with 'word .{0,40}\.\.\."),
    "categories": (frame(kind=pd.Categorical(list("xyzt") * 10)), ValueError, "do not hold numbers: 'kind'"),
    "dates": (frame(day=pd.date_range("2020-01-01", periods=40)), ValueError, "do not hold numbers: 'day'"),
    "durations": (frame(wait=pd.to_timedelta(np.arange(40), "h")), ValueError, "do not hold numbers: 'wait'"),
    "durations among objects": (
        frame(wait=pd.Series(list(np.arange(40).astype("m8[s]")), dtype=object)), ValueError,
        "do not hold numbers: 'wait'",
    ),
    "an array of dates": (DATES, ValueError, r"X holds times \(datetime64\[D\]\).*1, 'D'\) for days"),
    "an array of durations": (DATES - DATES.min(), ValueError, r"X holds times \(timedelta64\[D\]\)"),
    "no time": (changed(3, 2, np.timedelta64("NaT"), "m8[s]"), ValueError, r"X holds times \(timedelta64\[s\]\)"),
    "durations as objects": ((DATES - DATES.min()).astype(object), ValueError, r"holds times \(timedelta\)"),
    "a duration among numbers": (changed(3, 2, np.timedelta64(5, "s"), object), ValueError, r"times \(timedelta64\)"),
    "a list of dates": (list(DATES), ValueError, r"X holds times \(datetime64\[D\]\)"),
    "text": (X.astype(str), ValueError, r"X holds text \(dtype <U32\): X.astype\(float\) if these are numbers"),
    "complex numbers": (X + 1j, ValueError, r"Complex data not supported: X has dtype complex128. Use X.real"),
    "rows of two lengths": ([[1, 2], [3, 4], [5]], ValueError, "row 0 has 2 and row 2 has 1"),
    "a masked array": (np.ma.masked_greater(X, 2), ValueError, r"\d of its 240 values are masked. Drop those rows"),
    "a path": ("cells.csv", TypeError, r"X is a path, 'cells.csv': read the file first.*dufs-core fit cells.csv"),
    "nothing": (None, TypeError, r"X must be a table \(n_samples, n_features\).*got NoneType"),
    "numbers in arrays without dimensions": ([np.array(1.0), np.array(2.0)], ValueError, "got 1D array instead"),
    "a list of sparse rows": (
        [sparse.csr_matrix(X[:1]), sparse.csr_matrix(X[1:2])], TypeError,
        r"X is a list of 2 sparse matrices: join them first, as rows by scipy.sparse.vstack\(X\)",
    ),
    "a mapping": ({"a": [1, 2]}, TypeError, r"X must be a table .*got dict"),
    "an AnnData object": (LikeAnnData(), TypeError, r"dufs_core.anndata.select_features\(adata\), or .* adata.X"),
}  # fmt: skip


@pytest.mark.parametrize("method", [quick, LaplacianScore], ids=["gates", "baseline"])
@pytest.mark.parametrize("mistake", WRONG_DATA)
def test_wrong_data(mistake, method):
    data, kind, said = WRONG_DATA[mistake]
    with pytest.raises(kind, match=f"(?s){said}") as caught:
        method().fit(data)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("method", [quick, LaplacianScore], ids=["gates", "baseline"])
def test_columns_and_queries_of_polars(method):
    polars = pytest.importorskip("polars", reason="polars is not installed: its containers are not tested")
    with pytest.raises(ValueError, match=r"got 1D array instead \(shape=\(40,\)\)"):
        method().fit(polars.Series(X[:, 0]))
    with pytest.raises(TypeError, match=r"X is a LazyFrame.*call X.collect\(\) first"):
        method().fit(polars.DataFrame(X).lazy())


LABELS_OF_A_KIND = {
    "array": LABELS,
    "list": LABELS.tolist(),
    "column": LABELS[:, None],
    "sparse column": sparse.csr_matrix(LABELS[:, None]),
    "one of each kind": np.eye(3)[LABELS],
    "words": [f"kind {label}" for label in LABELS],
    "Series": pd.Series(LABELS, name="kind"),
    "some unknown": np.where(LABELS > 0, LABELS, np.nan),
    "array without dimensions": np.array(3),
    "number": 3,
}


@pytest.mark.filterwarnings("ignore::dufs_core.errors.RowsWarning")  # most columns tell the two groups
@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("kind", LABELS_OF_A_KIND)
def test_labels_of_any_kind_are_not_used(kind):
    """Not a bit of what is found depends on them, though half of the columns tell the labels."""
    data = np.random.default_rng(0).normal(size=(40, 30)) + np.tile(3.0 * np.eye(3, 6)[LABELS], 5)
    decoys = DUFS(random_state=0, backend="numpy")
    found = ("scores_", "order_", "support_")
    for method, attributes in (
        (decoys, (*found, "q_values_", "evidence_", "decoy_evidence_")),
        (quick(), (*found, "mu_")),
        (LaplacianScore(n_features_to_select=2), found),
    ):
        without = clone(method).fit(data)
        given = clone(method).fit(data, LABELS_OF_A_KIND[kind])
        assert 0 < without.support_.sum() < 30
        for name in attributes:
            np.testing.assert_array_equal(getattr(given, name), getattr(without, name), err_msg=name)


WRONG_SETTINGS = {
    "k too large": ({"n_neighbors": 40}, "got n_neighbors=40 for 40 rows, where 1 to 39 is valid"),
    "batch_size too small": ({"batch_size": 2}, r"batch_size .* at least n_neighbors \+ 2 = 4; got 2"),
    "more features than there are": ({"n_features_to_select": 7}, "from 1 to the 6 features of X.*got 7"),
    "a share in percent": ({"n_features_to_select": 50.0}, "a share between 0 and 1; got 50.0"),
    "a negative lam": (
        {"lam": -0.1},
        r"lam must be None \(parameter-free loss\) or a number of at least 0; got -0.1",
    ),
    "a lam beyond float32": ({"lam": 1e39}, r"lam must .*0, in float32 from 1.2e-38 to 3.4e\+38; got 1e\+39"),
    "a lam too small for float32": ({"lam": 1e-45}, r"lam must be .* from 1.2e-38 .*; got 1e-45"),
    "a lam beyond float64": ({"lam": 10**400, "dtype": "float64"}, r"in float64 from 2.2e-308 to 1.8e\+308; got 1000"),
    "a sigma too small for float32": ({"gate_sigma": 1e-45}, r"gate_sigma must .* positive number, in float32 .*1e-45"),
    "a factor beyond float32": ({"bandwidth_factor": 1e300}, r"bandwidth_factor must .* in float32 .*; got 1e\+300"),
    "a bandwidth beyond float32": ({"bandwidth": 1e-320}, r"bandwidth must .* in float32 .*; got 1e-320"),
    "a huge bandwidth": ({"bandwidth": 10**400}, r"bandwidth must .* in float32 .*; got 1000"),
    "a rate that is no number": ({"learning_rate": float("nan")}, "learning_rate must be a positive number; got nan"),
    "a momentum": ({"momentum": 0.5}, "has no parameter 'momentum': leave it out"),
    "a huge power": (
        {"power": 2**63},
        "power must be .* and at most 9223372036854775807; got 9223372036854775808",
    ),
    "a huge number of draws": (
        {"n_draws": 2**64},
        'n_draws must be "auto", 1 or an even number .*; got 18446744073709551616',
    ),
    "a huge number of threads": ({"n_jobs": 10**400}, "n_jobs must be None, -1 or a whole number .*; got 1000"),
    "a negative saturation": (
        {"saturation": -0.3},
        r"saturation is the most .* must be None \(no limit\) or a positive number, such as 0.3; got -0.3",
    ),
    "a saturation of 0": ({"saturation": 0}, r"saturation .* a positive number, such as 0.3; got 0"),
    "an infinite saturation": ({"saturation": float("inf")}, r"saturation .* or a positive number, .*; got inf"),
    "a saturation too small for float32": ({"saturation": 1e-45}, r"saturation .* in float32 from .*; got 1e-45"),
    "a saturation in words": ({"saturation": "0.3"}, r"saturation .* a positive number, .*; got '0.3'"),
    "several lams": ({"lam": [0.1, 0.2]}, r"lam must be .* a number .*got \[0.1, 0.2\]"),
    "bandwidth": ({"bandwidth": "meidan"}, "did you mean 'median'"),
    "scaling": ({"scaling": "column"}, "did you mean 'columns'"),
    "engine": ({"engine": "Dense"}, "did you mean 'dense'"),
    "optimizer": ({"optimizer": "Adam"}, "did you mean 'adam'"),
    "gate_noise": ({"gate_noise": "samples"}, "did you mean 'sample'"),
    "batches": ({"batches": "wrapped"}, "did you mean 'wrap'"),
    "zero_bandwidth": ({"zero_bandwidth": "ones"}, "did you mean 'one'"),
    "a noisy start in words": ({"noisy_start": "no"}, "noisy_start must be True or False; got 'no'"),
    "a negative delta": ({"delta": -1e-6}, "delta must be a number of at least 0; got -1e-06"),
    "backend": ({"backend": "cuypy"}, "did you mean 'cupy'"),
    "backend named by its machine": ({"backend": "gpu"}, r'"cupy" \(the GPU\); got \'gpu\''),
    "a NumPy dtype": ({"dtype": np.float32}, "did you mean 'float32'"),
    "a float for a seed": ({"random_state": 0.5}, "random_state must be None, a whole number.*got 0.5"),
    "a Generator": ({"random_state": RNG}, r"a whole number by rng.integers\(2\*\*31\)"),
    "one callback": ({"callbacks": print}, r"as in callbacks=\[print\]"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, on the way
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": "sgd", "learning_rate": 3e38, "lam": 3e38}, "After step 1 of 1 the loss or a gate is not a fin"),
        ({"gate_sigma": 3e38}, "A gate, .* would not be a finite number: with gate_sigma=3e[+]38"),
    ],
)
@pytest.mark.parametrize("engine", ["dense", "streaming", "reference"])
def test_a_fit_without_finite_numbers_is_no_result(changes, said, engine):
    with pytest.raises(ValueError, match=said):
        quick(engine=engine, **changes).fit(np.c_[X, np.ones(40)])


def test_the_lams_of_a_path_are_checked_alike():
    for lams, said in (([1e39], "in float32 .* got 1e.39"), ([10**400], "lams must be None or a sequence of numbers")):
        with pytest.raises(ValueError, match=said):
            LambdaPath(quick(), lams=lams, n_splits=1, n_permutations=9).fit(X)


@pytest.mark.parametrize("mistake", WRONG_SETTINGS)
def test_wrong_settings(mistake):
    changes, said = WRONG_SETTINGS[mistake]
    with pytest.raises(ValueError, match=said):
        quick(**changes).fit(X)


def test_presets_and_baselines_suggest_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'paper'"):
        GatedLaplacian.preset("papre")
    for changes, meant in (({"scaling": "colums"}, "columns"), ({"variant": "random-walk"}, "random_walk")):
        with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
            LaplacianScore(**changes).fit(X)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match=r"CuPy is not installed: pip install .*Use backend=\"numpy\""):
        quick(backend="cupy").fit(X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
@pytest.mark.parametrize("method", [quick, LaplacianScore], ids=["gates", "baseline"])
def test_samples_and_features_swapped(method):
    fitted = method().fit(X)
    with pytest.raises(ValueError, match=r"X has 40 features, but \w+ is expecting 6 .* rows: samples are rows.* X\.T"):
        fitted.transform(X.T)
    with pytest.raises(ValueError, match=r"X has 6 rows and 40 columns, and y 40 entries: samples are rows.* X\.T"):
        method().fit(X.T, LABELS)
    method().fit(X.T)  # more features than samples is what the method is for


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
@pytest.mark.parametrize("method", [quick, LaplacianScore], ids=["gates", "baseline"])
def test_unscaled_counts(method):
    counts = np.random.default_rng(0).poisson(1, size=X.shape) * np.array([1, 1, 3, 100, 1, 9])
    with pytest.warns(DufsWarning, match=r'1 of the 6 columns makes 90% or more .*column 3 .*"columns", or .*log1p'):
        method(scaling="none").fit(counts)
    method().fit(counts)  # pytest makes every other warning an error


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_one_constant_row_is_a_row_as_any_other():
    selector = quick().fit(changed(0, slice(None), 0.0))
    assert np.isfinite(selector.mu_).all()
    assert np.isfinite(selector.history_["loss"]).all()


def test_labels_as_the_only_column():
    with (
        pytest.warns(SelectionWarning, match="a single column.*If it holds labels, give the data"),
        pytest.warns(DegenerateBandwidthWarning),
    ):
        quick().fit(LABELS[:, None])


@pytest.mark.parametrize("method", [quick, LaplacianScore], ids=["gates", "baseline"])
def test_all_columns_constant(method):
    with pytest.warns(SelectionWarning, match="All 6 columns of X are constant.*Check that samples are rows"):
        method().fit(np.ones((10, 6)))


@pytest.mark.parametrize("method", [DUFS, LaplacianScore], ids=["DUFS", "baseline"])
def test_not_fitted(method):
    with pytest.raises(NotFittedError, match=r"not fitted yet. Call 'fit'"):
        method().transform(X)


@pytest.mark.filterwarnings("ignore::dufs_core.errors.DufsWarning")
def test_names_that_do_not_match():
    selector = quick().fit(pd.DataFrame(X, columns=NAMES))
    with pytest.raises(ValueError, match=r"(?s)unseen at fit time:.*- z.*yet now missing:.*- f"):
        selector.transform(pd.DataFrame(X, columns=[*NAMES[:-1], "z"]))
    with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
        selector.transform(pd.DataFrame(X, columns=NAMES[::-1]))


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_images_at_transform_and_in_reports():
    fitted = quick().fit(X)
    for use in (fitted.transform, lambda images: report(fitted, images)):
        with pytest.raises(ValueError, match=r"images become rows of pixels by X.reshape"):
            use(X.reshape(40, 3, 2))


def test_pictures_and_reports_of_what_cannot_be_drawn():
    path, baseline = LambdaPath(), LaplacianScore().fit(X)
    for draw in (plotting.ranked_scores, plotting.loss_and_gates, lambda s: plotting.selected_pixels(s, (2, 3))):
        with pytest.raises(NotFittedError, match=r"GatedLaplacian instance is not fitted yet: call its fit\(X\) first"):
            draw(GatedLaplacian())
    with pytest.raises(NotFittedError, match="LambdaPath instance is not fitted yet"):
        plotting.lambda_path(path)
    with pytest.raises(TypeError, match="LaplacianScore has no history_, which this needs"):
        plotting.loss_and_gates(baseline)
    with pytest.raises(ValueError, match=r"shape must be \(height, width\) .* got 6"):
        plotting.selected_pixels(baseline, 6)
    with pytest.raises(TypeError, match=r"must be a fitted selector, and X comes after it; got ndarray"):
        report(X, baseline)


def test_every_column_but_the_constant_ones_is_said_to_be_selected():
    with pytest.warns(SelectionWarning, match=r"all 6 features that are not constant after 3 steps of"):
        quick(n_features_to_select=None).fit(np.hstack([X, np.ones((40, 2))]))
    with pytest.warns(SelectionWarning, match=r"all 6 features that are not constant with lam=0.0: try a larger lam"):
        quick(n_features_to_select=None, lam=0.0).fit(np.hstack([X, np.ones((40, 2))]))


@pytest.mark.filterwarnings("ignore::dufs_core.errors.SelectionWarning")
def test_columns_set_aside_rank_as_in_the_first_run():
    wide = np.column_stack([np.ones(40), np.random.default_rng(4).normal(size=(40, 25))])
    trajectory = Trajectory(every=1)
    fitted = quick(
        max_iter=100, learning_rate=0.05, max_runs=2, n_features_to_select=24, callbacks=[trajectory]
    ).fit(wide)  # fmt: skip
    assert [len(run.columns) for run in trajectory.runs] == [25, 20]
    aside = np.setdiff1d(np.flatnonzero(np.isnan(fitted.mu_)), fitted.constant_features_)
    first = trajectory.runs[0]
    assert len(aside) == 5, "the second run was not kept: the data do not test this"
    by_first_run = aside[np.argsort(-first.mu[-1][np.searchsorted(first.columns, aside)], kind="stable")]
    assert not np.array_equal(by_first_run, aside), "in the order of the columns already: the data do not test this"
    np.testing.assert_array_equal(fitted.order_[20:], [*by_first_run, 0])
    assert fitted.support_[by_first_run[:4]].all()
    found = report(fitted, wide)
    assert found.rows[20]["reason"].startswith("took no part in the run that was kept; ranked by the first run")
    assert any(note.startswith("The run that was kept had gates for the 20 columns") for note in found.notes)
