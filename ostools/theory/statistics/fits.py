"""By which law does a distance fall with length: a power, an exponential, down to a level, or not
at all?

    power         log d = a - k log n            exponential   log d = a - r n
    ... to a level:                                            log d = log(exp(the same) + c)

Least squares in the log. Neighbouring lengths share nearly all their tokens, so that the residuals
are correlated and the textbook interval is far too narrow: at a correlation of 0.9 it held the
truth in 33 to 43 of 100 simulated curves. The noise here is an AR(1) process along the curve, of a
correlation rho that is not known: the interval integrates over rho, each weighted by its restricted
likelihood and a prior 1 / (1 - rho^2). On 20 to 480 lengths with rho up to 0.97 it held the truth
in 93 to 100 of 100, where Newey-West held it in 34 to 91 and the cosine-basis interval of Lazarus
et al. (2018) in 57 to 95. The laws are compared by BIC under the same AR(1) likelihood: a bend may
be correlated noise, or a level.

Cost: some 10 milliseconds a curve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from ostools.ground import InputError

Numbers = Float[np.ndarray, " length"]
Parameters = Float[np.ndarray, " parameter"]
Gradient = Float[np.ndarray, "length parameter"]

VERDICTS = (
    "power",
    "exponential",
    "power to a level",
    "exponential to a level",
    "decay not shown",
    "undecided",
    "too few",
)
FEWEST = 8
"""A curve of fewer lengths above the floor is not fitted."""
DECISIVE = 2.0
"""A difference of BIC below this is "not worth more than a bare mention" (Kass and Raftery 1995):
undecided.
"""

_RHO = np.tanh(np.linspace(0.0, 3.2, 40))
"""Correlations of neighbours that are integrated over: evenly spread in artanh, which is the prior
1 / (1 - rho^2).
"""
_LEVEL = 0.95  # of every interval
_ROUNDING = 1e-12
"""Residuals of a log below this are rounding: no law is preferred for them."""
_SCALES: dict[str, Callable[[Numbers], Numbers]] = {"power": np.log, "exponential": lambda n: n}


@dataclass(frozen=True)
class Law:
    """One law fitted to one curve.

    `rate`: k of n^-k, or r of e^(-r n) (per length); `low` and `high` its interval. `level`: what
    it falls to, 0 for a plain law. `bic`: comparable among the laws of one curve; smaller is
    better.
    """

    name: str
    rate: float
    low: float
    high: float
    log_amplitude: float
    level: float
    bic: float

    def __call__(self, lengths: Sequence[float] | Numbers) -> Numbers:
        x = _SCALES[self.name.split()[0]](np.asarray(lengths, dtype=float))
        return np.exp(self.log_amplitude - self.rate * x) + self.level


@dataclass(frozen=True)
class Decay:
    """Verdict on how one curve falls.

    Attributes:
        verdict: one of `VERDICTS`. "decay not shown": a constant does as well, or the interval of
            the best law's rate holds 0 (neighbours are correlated: a fall of few values can do
            that), or it rises. "undecided": it falls, and two laws are within `DECISIVE`. "too
            few": fewer than `FEWEST` values above the floor.
        law: the law of least BIC, for a plain verdict the plain law; None where decay is not shown,
            or too few values.
        power, exponential: the plain laws, whatever the verdict; None with too few values.
        evidence: BIC of the exponential minus that of the power law: positive speaks for the power
            law.
        without_level: BIC of the better law to a level minus that of the better plain law: above
            `DECISIVE` the curve has no level; infinite where no level can be told from 0.
        used, left_out: how many lengths were fitted, and how many were not.
    """

    verdict: str
    law: Law | None
    power: Law | None
    exponential: Law | None
    evidence: float
    without_level: float
    used: int
    left_out: int


def fit_decay(
    lengths: Sequence[float] | np.ndarray,
    values: Sequence[float] | np.ndarray,
    *,
    floor: float = 0.0,
    confidence: float = _LEVEL,
) -> Decay:
    """Fit both laws to d(n), with and without a level, and say which holds, if one does.

    Args:
        lengths: n, increasing, at least 1; evenly spaced ones (or evenly in the log) are what the
            noise model is about.
        values: d(n) >= 0.
        floor: the first value at or below it ends the fit, and it and all later ones are left out:
            keeping those that noise lifts over the floor would bend the curve. Take the rounding
            noise of the run.
        confidence: of the intervals of rates, by which "decay not shown" is decided.

    Raises `InputError` for lengths that do not increase or are below 1, and values that are
    negative or not finite.
    """
    n, d = _checked(lengths, values, floor)
    below = d <= floor
    used = int(below.argmax()) if below.any() else len(d)
    left_out = len(d) - used
    if used < FEWEST:
        return Decay("too few", None, None, None, np.nan, np.nan, used, left_out)
    n, log_d = n[:used], np.log(d[:used])
    plain = {name: _plain(name, n, log_d, confidence) for name in _SCALES}
    levelled = [
        law for name in _SCALES if (law := _levelled(name, n, log_d, confidence)) is not None
    ]
    constant = _bic(log_d - log_d.mean(), 1)
    verdict, law = _judged(plain, levelled, constant)
    power, exponential = plain["power"], plain["exponential"]
    evidence = exponential.bic - power.bic
    level_bic = min((law.bic for law in levelled), default=np.inf)
    without_level = level_bic - min(power.bic, exponential.bic)
    return Decay(verdict, law, power, exponential, evidence, without_level, used, left_out)


def power_to_a_level(
    lengths: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray
) -> Law | None:
    """d(n) = exp(a) n^-k + c, fitted in the log, whatever other law may fit better; c is 0 where a
    plain power law does as well by BIC. None where the interval of k holds 0: of a curve that is at
    its level from the second value on, every large k will do.

    Raises `InputError` for fewer than `FEWEST` values, for one that is 0, and as `fit_decay` does.
    """
    n, d = _checked(lengths, values, 0.0)
    if len(d) < FEWEST or not (d > 0).all():
        raise InputError(
            f"power_to_a_level: expected at least {FEWEST} values above 0, found "
            f"{int((d > 0).sum())}"
        )
    laws = [_plain("power", n, np.log(d)), _levelled("power", n, np.log(d))]
    best = min((law for law in laws if law is not None), key=lambda law: law.bic)
    return best if best.low > 0 else None


def over_seeds(rates: Sequence[float]) -> tuple[float, float, float]:
    """The mean of independent rates with its Student interval; NaN limits for fewer than two.

    The mean rate of plain laws over the same lengths is the rate of the geometric mean of the
    curves.
    """
    from scipy.special import stdtrit

    values = np.asarray(rates, dtype=float)
    if len(values) < 2:
        return float(values.mean()), np.nan, np.nan
    half = stdtrit(len(values) - 1, (1 + _LEVEL) / 2) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def _judged(plain: dict[str, Law], levelled: list[Law], constant: float) -> tuple[str, Law | None]:
    """A level has to earn its parameter; a law has to fall, and to beat both a constant and the
    other law.
    """
    best = min(plain.values(), key=lambda law: law.bic)
    bent = min(levelled, key=lambda law: law.bic, default=None)
    if bent is not None and bent.low > 0 and bent.bic < min(best.bic, constant) - DECISIVE:
        best, rivals = bent, [law for law in levelled if law is not bent]
    else:
        rivals = [law for law in plain.values() if law is not best]
    if best.low <= 0 or constant <= best.bic:
        return "decay not shown", None
    undecided = any(rival.bic - best.bic < DECISIVE for rival in rivals)
    return ("undecided" if undecided else best.name), best


def _plain(name: str, n: Numbers, log_d: Numbers, confidence: float = _LEVEL) -> Law:
    """log d = a - rate x, x = log n or n."""
    x = _SCALES[name](n)
    G = np.stack([np.ones_like(x), -x], axis=1)
    a, rate = np.linalg.lstsq(G, log_d, rcond=None)[0]
    residuals = log_d - (a - rate * x)
    half = _half_width(G, residuals, confidence)
    return Law(
        name, float(rate), float(rate - half), float(rate + half), float(a), 0.0, _bic(residuals, 2)
    )


def _levelled(name: str, n: Numbers, log_d: Numbers, confidence: float = _LEVEL) -> Law | None:
    """log d = log(exp(a - rate x) + c); None where no c above 0 can be told from 0, or the curve
    has no part that falls.
    """
    from scipy.optimize import least_squares
    from scipy.special import expit

    x = _SCALES[name](n)

    def residuals(p: Parameters) -> Numbers:
        return np.logaddexp(p[0] - p[1] * x, p[2]) - log_d

    def gradient(p: Parameters) -> Gradient:
        falling = expit(p[0] - p[1] * x - p[2])
        return np.stack([falling, -x * falling, 1.0 - falling], axis=1)

    fits = []
    for part in (4, 2):  # starts: the law of the first quarter or half, the level of the last
        first, last = slice(0, max(len(x) // part, 3)), slice(-max(len(x) // part, 3), None)
        slope, a = np.polyfit(x[first], log_d[first], 1)
        start = [a, -slope, log_d[last].mean()]
        fits.append(
            least_squares(
                residuals, start, jac=cast(Any, gradient), method="lm", x_scale="jac", max_nfev=100
            )
        )
    best = min(fits, key=lambda fit: fit.cost)
    G = gradient(best.x)
    norms = np.linalg.norm(G, axis=0)
    # Where all of the curve is at the level up to rounding, the rate is of nothing that is there.
    if G[:, 0].max() < _ROUNDING or not norms.all() or np.linalg.cond(G / norms) > 1e6:
        return None
    half = _half_width(G, -best.fun, confidence)
    a, rate, log_level = map(float, best.x)
    return Law(
        f"{name} to a level",
        rate,
        rate - half,
        rate + half,
        a,
        float(np.exp(log_level)),
        _bic(best.fun, 3),
    )


def _half_width(G: Gradient, residuals: Numbers, confidence: float = _LEVEL) -> float:
    """Half of the interval of the second parameter of a least-squares fit, rho integrated out.

    Given rho, the parameter's error is Student with the variance of the sandwich P Omega(rho) P^T,
    P the pseudoinverse of G.
    """
    from scipy.optimize import brentq
    from scipy.special import stdtr, stdtrit

    m, p = G.shape
    size = max(float(np.linalg.norm(residuals)), m**0.5 * _ROUNDING)
    # Whatever basis spans the columns of G, the same is left of the residuals.
    products = _whitened_products(np.column_stack([np.linalg.qr(G)[0], residuals / size]))
    XX, Xu, uu = products[:, :p, :p], products[:, :p, p:], products[:, p, p]
    residual = uu - (Xu * np.linalg.solve(XX, Xu)).sum((1, 2))
    square = np.maximum(size**2 * residual, m * _ROUNDING**2)
    # Restricted likelihood: that of the part of the data which no parameter can explain.
    log_weights = 0.5 * (np.log1p(-(_RHO**2)) - np.linalg.slogdet(XX)[1] - (m - p) * np.log(square))
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    # The columns to norm 1 first: `pinv` takes a column that is far smaller than the largest one
    # for 0.
    norms = np.linalg.norm(G, axis=0)
    row = np.linalg.pinv(G / norms)[1] / norms[1]
    spread = np.sqrt(square / (m - p) / (1.0 - _RHO**2) * _correlated_square(row))

    def excess(half: float) -> float:
        return float(weights @ stdtr(m - p, half / spread)) - (1 + confidence) / 2

    return cast(
        float, brentq(excess, 0.0, stdtrit(m - p, (1 + confidence) / 2) * spread.max() * 1.001)
    )


def _whitened_products(
    columns: Float[np.ndarray, "length column"],
) -> Float[np.ndarray, "rho column column"]:
    """Inner products of the columns made independent, for every rho: (1 - rho^2) x_0 y_0 + sum_t
    (x_t - rho x_{t-1}) (...).
    """
    products, shifted, inner = (
        columns.T @ columns,
        columns[1:].T @ columns[:-1],
        columns[1:-1].T @ columns[1:-1],
    )
    rho = _RHO[:, None, None]
    return products - rho * (shifted + shifted.T) + rho**2 * inner


def _correlated_square(x: Numbers) -> Float[np.ndarray, " rho"]:
    """sum_st rho^|t - s| x_s x_t, for every rho."""
    lagged = np.correlate(x, x, mode="full")[len(x) - 1 :]
    return 2.0 * (_RHO[:, None] ** np.arange(len(x)) @ lagged) - lagged[0]


def _bic(residuals: Numbers, parameters: int) -> float:
    """The Bayesian information criterion under AR(1) noise, at its most likely rho."""
    m = len(residuals)
    squares = np.maximum(_whitened_products(residuals[:, None])[:, 0, 0], m * _ROUNDING**2)
    deviance = m * np.log(squares / m) - np.log1p(-(_RHO**2))
    return float(deviance.min() + (parameters + 2) * np.log(m))


def _checked(
    lengths: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray, floor: float
) -> tuple[Numbers, Numbers]:
    n, d = np.asarray(lengths, dtype=float), np.asarray(values, dtype=float)
    if n.ndim != 1 or n.shape != d.shape:
        raise InputError(
            f"fit_decay: expected one value a length, found {n.shape} lengths and {d.shape} values"
        )
    if len(n) and (not np.isfinite(n).all() or n[0] < 1 or (np.diff(n) <= 0).any()):
        raise InputError("fit_decay: expected increasing lengths of at least 1")
    if not np.isfinite(d).all() or (d < 0).any():
        raise InputError(
            "fit_decay: expected finite values of at least 0, found "
            f"{d[~np.isfinite(d) | (d < 0)][0]}"
        )
    if floor < 0:
        raise InputError(f"fit_decay: expected a floor of at least 0, found {floor}")
    return n, d
