"""The quick part of the tests with the oldest and the newest dependencies, under every Python that is supported.

    pip install 'nox[uv]' && nox

The lower bounds are those of setup.cfg: uv's resolution "lowest-direct" installs exactly these.
"""

import nox

nox.options.default_venv_backend = "uv"
QUICK = ["packaging", "ops", "objective", "optim", "random", "estimator", "kernels"]


def check(session: nox.Session, *options: str) -> None:
    session.install(*options, ".[test]")
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/test_{name}.py" for name in QUICK))


@nox.session(python=["3.11", "3.12", "3.13"])
def newest(session: nox.Session) -> None:
    check(session)


@nox.session(python="3.13")
def adapters(session: nox.Session) -> None:
    """The gradient verifier with the array libraries that it takes functions of."""
    session.install(".[test]", "jax", "torch")
    session.run("python", "-m", "pytest", "-q", "-rs", "tests/gradcheck/test_adapters.py")


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    check(session, "--resolution", "lowest-direct")
