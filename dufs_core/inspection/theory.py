"""How many nuisance dimensions two clusters can bear: the paper's analysis, with a union bound.

The points of two clusters, n each, have one of two values in one coordinate, at distance r; d more coordinates are
N(0, s^2) in all points. A squared distance within a cluster is 2 s^2 X, between clusters r^2 + 2 s^2 X', with X, X'
chi-squared with d degrees of freedom (differences have variance 2 s^2), and for every g > 0 (Laurent and Massart 2000,
lemma 1)

    P(X >= d + 2 sqrt(d g) + 2 g) <= exp(-g),      P(X <= d - 2 sqrt(d g)) <= exp(-g).

There are n (n - 1) pairs within clusters and n^2 between them. If none of these 2 n^2 - n events happens, every point
is nearer to all points of its own cluster than to any of the other one, provided that

    4 sqrt(d g) + 2 g <= rho^2,      rho = r / (sqrt(2) s),

which has probability at least 1 - (2 n^2 - n) exp(-g). So d may grow like r^4 / g.

Source: Lindenbaum, Shaham, Svirsky, Peterfreund and Kluger, arXiv 2007.04728. The paper multiplies the probabilities of
the pairs as if they were independent, which they are not; the union bound needs no independence, and costs next to
nothing: g is larger by about epsilon / 2. The paper also prints s = 0.5 where it uses differences of variance 1, which
is s = 1 / sqrt(2).
"""

from __future__ import annotations

from math import expm1, floor, isfinite, log, sqrt
from numbers import Integral

_MOST = 1e70  # of r / s: the bound on d grows like its fourth power


def exponent(n: int, epsilon: float) -> float:
    """g = log((2 n^2 - n) / epsilon): all 2 n^2 - n pairs obey their bounds with probability at least 1 - epsilon.

    n points per cluster, at least 1; epsilon between 0 and 1. Raises ValueError otherwise.
    """
    _check_n(n)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon is a probability of failure, between 0 and 1; got {epsilon}")
    return log((2 * n * n - n) / epsilon)


def max_nuisance_dimensions(r: float, n: int, epsilon: float = 0.05, s: float = sqrt(0.5)) -> int:
    """Largest d for which every point's neighbours are sure to stay in its cluster, with probability >= 1 - epsilon.

        sqrt(d) <= (rho^2 - 2 g) / (4 sqrt(g)),   rho = r / (sqrt(2) s),   g = log((2 n^2 - n) / epsilon)

    Parameters
    ----------
    r : float
        Distance between the clusters, at least 0.
    n : int
        Points per cluster, at least 1.
    epsilon : float
        Probability of failure.
    s : float
        Standard deviation of a nuisance coordinate. The default gives differences of variance 1, as in the paper.

    Returns
    -------
    int
        0 if the bound allows none. More is possible: see docs/experiments.md for how far the second eigenvector of the
        random walk goes beyond it.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    g, rho2 = exponent(n, epsilon), _rho2(r, s)
    return floor((max(rho2 - 2 * g, 0.0) / (4 * sqrt(g))) ** 2)


def separation_probability(r: float, n: int, d: int, s: float = sqrt(0.5)) -> float:
    """Lower bound on the probability that every point is nearer to its own cluster than to the other.

        1 - (2 n^2 - n) exp(-g),   sqrt(g) = sqrt(d + rho^2 / 2) - sqrt(d),   which solves  4 sqrt(d g) + 2 g = rho^2

    r, n, s as in `max_nuisance_dimensions`; d the number of nuisance coordinates, at least 0. Returns a float in
    [0, 1]: 0 where the bound says nothing; without nuisance coordinates 1 for r > 0.
    Raises ValueError if a number is out of range.
    """
    _check_n(n)
    if not isinstance(d, Integral) or d < 0:
        raise ValueError(f"d must be a whole number of at least 0; got {d!r}")
    rho2 = _rho2(r, s)
    if d == 0:
        return float(rho2 > 0)
    g = (rho2 / 2 / (sqrt(d + rho2 / 2) + sqrt(d))) ** 2  # the difference of roots without cancellation
    return max(0.0, -expm1(log(2 * n * n - n) - g)) if g > 0 else 0.0


def chi2_bounds(d: int, g: float) -> tuple[float, float]:
    """(d - 2 sqrt(d g), d + 2 sqrt(d g) + 2 g): a chi-squared with d degrees of freedom passes either with probability
    at most exp(-g).

    d >= 1, g > 0, else ValueError. Source: Laurent and Massart, Annals of Statistics 28 (2000), lemma 1.
    """
    if not isinstance(d, Integral) or d < 1 or not 0 < g < float("inf"):
        raise ValueError(f"d must be a whole number of at least 1 and g positive; got d = {d!r}, g = {g!r}")
    return d - 2 * sqrt(d * g), d + 2 * sqrt(d * g) + 2 * g


def _rho2(r: float, s: float) -> float:
    if not (isfinite(r) and r >= 0):
        raise ValueError(f"r is a distance, at least 0; got {r}")
    if not (isfinite(s) and s > 0):
        raise ValueError(f"s is a standard deviation and must be positive; got {s}")
    if r / s > _MOST:
        raise ValueError(
            f"r / s must be at most {_MOST:.0e}, so that rho^2 = r^2 / (2 s^2) and its square are finite numbers; got "
            f"r = {r} and s = {s}"
        )
    return (r / s) ** 2 / 2


def _check_n(n: int) -> None:
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n counts the points of a cluster and must be a whole number of at least 1; got {n!r}")
