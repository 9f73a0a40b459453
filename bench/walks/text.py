"""The numbers and pictures of docs/walks/text.md: docstrings of SciPy, whose words are known, and documents of RCV1.

    python -m bench.walks.text --out DIR [docstrings] [stories]

Needs matplotlib and SciPy's own documentation; for stories the rcv1_*.dat files in DUFS_DATA.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy import sparse

from bench.common import required
from bench.paper.data import RCV1_FILES, read_documents
from bench.walks import run
from bench.walks.images import fitted
from dufs_core import report
from dufs_core.inspection import plotting
from dufs_core.inspection.plotting.canvas import figure

MODULES = ("linalg", "optimize", "signal", "stats")


def documents() -> tuple[list[str], Any]:
    """The docstrings of everything public in four modules of SciPy, and the module of each."""
    texts: dict[str, str] = {}
    for module in MODULES:
        public = importlib.import_module(f"scipy.{module}")
        for name in sorted(public.__all__):
            text = inspect.getdoc(getattr(public, name)) or ""
            if not inspect.ismodule(getattr(public, name)) and len(text) > 500:
                texts.setdefault(text, module)
    return list(texts), np.array(list(texts.values()))


def classified(X: Any, labels: Any, columns: Any) -> str:
    """Per cent right of a linear classifier in five-fold cross-validation, from these columns."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    part = sparse.csr_matrix(X[:, columns])
    part.indices, part.indptr = part.indices.astype(np.int32), part.indptr.astype(np.int32)  # scikit-learn wants them
    return f"{100 * cross_val_score(LogisticRegression(C=10, max_iter=2000), part, labels, cv=5).mean():.1f}"


def judged(X: Any, labels: Any, rankings: dict[str, Any], counts: tuple[int, ...]) -> None:
    print(f"| words | {' | '.join(map(str, counts))} |")
    for what, ranking in rankings.items():
        print(f"| {what} | {' | '.join(classified(X, labels, ranking[:k]) for k in counts)} |", flush=True)
    print(f"| all {X.shape[1]}: {classified(X, labels, np.arange(X.shape[1]))} |")


def others(X: Any) -> dict[str, Any]:
    """Rankings that cost nothing."""
    stored = np.bincount(X.indices, minlength=X.shape[1])
    squares, means = X.multiply(X).mean(axis=0), X.mean(axis=0)
    variances = np.asarray(squares).ravel() - np.asarray(means).ravel() ** 2
    return {
        "in most documents": np.argsort(-stored, kind="stable"),
        "largest variance": np.argsort(-variances, kind="stable"),
        "at random": np.random.default_rng(0).permutation(X.shape[1]),
    }


def docstrings(out: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, labels = documents()
    vectoriser = TfidfVectorizer(
        min_df=5, max_df=0.5, stop_words="english", sublinear_tf=True, token_pattern=r"(?u)\b[a-z]{3,}\b"
    )
    X = vectoriser.fit_transform(texts)
    words = vectoriser.get_feature_names_out()
    print(f"SciPy {scipy.__version__}: {X.shape[0]} texts, {X.shape[1]} words, {X.nnz / np.prod(X.shape):.1%} stored")
    print({module: int((labels == module).sum()) for module in MODULES})
    fits = {}
    for scaling in ("columns", "global"):
        fits[scaling] = fitted(f"docstrings, scaling={scaling!r}", X, scaling=scaling)
        print("  " + " ".join(words[fits[scaling].order_[:30]]))
    selector = fits["global"]
    print(report(selector, X, names=words).text(most=4)[:1500])
    rankings = {"DUFS, global": selector.order_, "DUFS, columns": fits["columns"].order_, **others(X)}
    judged(X, labels, rankings, (20, 50, 100, 300))
    pictures(out / "docstrings.png", selector, X, labels)


def pictures(path: Path, selector: Any, X: Any, labels: Any) -> None:
    picture, axes = figure(1, 3, 4.4, 3.6)
    plotting.ranked_scores(selector, axes[0])
    plotting.embedding(selector, X, labels, axes[1:])
    picture.savefig(path, dpi=65)


def stories(out: Path) -> None:
    X, subjects = read_documents(*required(*RCV1_FILES))
    labels = np.array([int(subject) for (subject,) in subjects])
    often = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]) >= 20)
    X = sparse.csr_matrix(X[:, often])
    print(f"\n{X.shape[0]} documents, {X.shape[1]} words in at least 20 of them, {X.nnz / np.prod(X.shape):.1%} stored")
    fits = {scaling: fitted(f"stories, scaling={scaling!r}", X, scaling=scaling) for scaling in ("columns", "global")}
    rankings = {"DUFS, global": fits["global"].order_, "DUFS, columns": fits["columns"].order_, **others(X)}
    judged(X, labels, rankings, (20, 50, 100, 300))
    pictures(out / "stories.png", fits["global"], X, labels)


if __name__ == "__main__":
    run(__doc__ or "", {"docstrings": docstrings, "stories": stories})
