"""The fit of a decay: exact on exact curves, honest in noise, and able to say that there is none."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import t as student

from ostools.ground.errors import InputError
from ostools.theory.statistics import fits
from ostools.theory.statistics.fits import fit_decay
from tests.sets import quick

N = np.arange(1, 201, dtype=float)


def noise(seed: int, rho: float, size: float, length: int = 200) -> np.ndarray:
    """Stationary AR(1) noise of standard deviation `size`."""
    steps = np.random.default_rng(seed).standard_normal(length) * (1 - rho**2) ** 0.5
    steps[0] /= (1 - rho**2) ** 0.5
    return size * np.asarray(lfilter([1.0], [1.0, -rho], steps))


CURVES = {
    "power": lambda n: 3.0 * n**-0.7,
    "exponential": lambda n: 2.0 * np.exp(-0.05 * n),
    "power to a level": lambda n: 3.0 * n**-0.7 + 0.2,
    "exponential to a level": lambda n: 2.0 * np.exp(-0.05 * n) + 0.01,
}


@pytest.mark.parametrize("verdict", CURVES)
def test_exact_curves_are_found_exactly(verdict: str) -> None:
    fit = fit_decay(N, CURVES[verdict](N))
    assert fit.verdict == verdict
    assert fit.law is not None
    rate = 0.7 if "power" in verdict else 0.05
    assert fit.law.rate == pytest.approx(rate, rel=1e-9)
    assert fit.law.low <= rate <= fit.law.high
    assert fit.law.high - fit.law.low < 1e-8
    np.testing.assert_allclose(fit.law(N), CURVES[verdict](N), rtol=1e-8)
    assert (fit.evidence > 0) == ("power" in verdict)
    assert (fit.without_level > fits.DECISIVE) == ("level" not in verdict)
    assert (fit.used, fit.left_out) == (200, 0)


@pytest.mark.parametrize("rho", quick([0.0, 0.5, 0.9], 0.5))
@pytest.mark.parametrize("name", ["power", "exponential"])
def test_the_interval_holds_the_truth_about_95_times_in_100(rho: float, name: str) -> None:
    x = fits._SCALES[name](N[:100])
    laws = [
        fits._plain(name, N[:100], -0.3 * x + noise(seed, rho, 0.4, 100)) for seed in range(200)
    ]
    assert np.mean([law.low <= 0.3 <= law.high for law in laws]) >= 0.91
    if (
        rho == 0.0
    ):  # and it is not wide for nothing: near the textbook's width where neighbours are independent
        textbook = 1.984 * 0.4 / ((x - x.mean()) ** 2).sum() ** 0.5
        assert (laws[-1].high - laws[-1].low) / 2 == pytest.approx(textbook, rel=0.5)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.99])
def test_the_interval_holds_the_truth_as_often_as_its_confidence_says(confidence: float) -> None:
    x = np.log(N[:100])
    curves = [noise(seed, 0.5, 0.4, 100) - 0.3 * x for seed in range(200)]
    laws = [fits._plain("power", N[:100], curve, confidence) for curve in curves]
    held = np.mean([law.low <= 0.3 <= law.high for law in laws])
    fitted = fit_decay(N[:100], np.exp(curves[-1]), confidence=confidence).power
    assert fitted is not None
    assert fitted.low == pytest.approx(laws[-1].low)
    assert held == pytest.approx(confidence, abs=3 * (confidence * (1 - confidence) / 200) ** 0.5)


def test_a_curve_that_is_constant_up_to_rounding_does_not_decay() -> None:
    """The last bits of a constant decide where the fit of a level ends: often at a law that is
    nowhere on the curve.
    """
    lengths = 2.0 ** np.arange(4, 14)
    for level in (0.0171, 0.3, 1.1, 2.5, 7.7):
        for seed in range(12):
            last_bits = (
                np.random.default_rng(seed).integers(0, 3, len(lengths)) * np.finfo(float).eps
            )
            assert fit_decay(lengths, level * (1 + last_bits)).verdict == "decay not shown"


@pytest.mark.parametrize("parameters", [2, 3])
def test_an_interval_is_that_of_dense_matrices(parameters: int) -> None:
    """Restricted likelihood of every rho by Omega(rho) = rho^|i - j| and its inverse; then a
    mixture of Student's laws.
    """
    rng, m = np.random.default_rng(parameters), 14
    gradient = rng.standard_normal((m, parameters))
    data = noise(1, 0.7, 1.0, m)
    residuals = data - gradient @ np.linalg.lstsq(gradient, data, rcond=None)[0]
    away, logs, spreads = np.abs(np.subtract.outer(np.arange(m), np.arange(m))), [], []
    for rho in fits._RHO:
        correlated = rho**away
        inverse = np.linalg.inv(correlated)
        inner = gradient.T @ inverse @ gradient
        weighted = inverse @ gradient
        left = residuals @ (inverse - weighted @ np.linalg.solve(inner, weighted.T)) @ residuals
        logdets = np.linalg.slogdet(correlated)[1] + np.linalg.slogdet(inner)[1]
        logs.append(-0.5 * (logdets + (m - parameters) * np.log(left)))
        row = np.linalg.pinv(gradient)[1]
        spreads.append(np.sqrt(left / (m - parameters) * (row @ correlated @ row)))
    weights = np.exp(np.array(logs) - max(logs))
    half = fits._half_width(gradient, residuals)
    covered = weights @ student.cdf(half / np.array(spreads), m - parameters) / weights.sum()
    assert covered == pytest.approx(0.975, abs=1e-9)


def dense_bic(residuals: np.ndarray, parameters: int) -> float:
    """-2 log likelihood at its best (innovations' variance, rho) + parameters log m, by Omega(rho)
    = rho^|i - j| / (1 - rho^2).

    The variance and rho are two parameters more. Constants that all laws of one curve share are
    left out.
    """
    m = len(residuals)
    away = np.abs(np.subtract.outer(np.arange(m), np.arange(m)))
    deviances = []
    for rho in fits._RHO:
        omega = rho**away / (1 - rho**2)
        variance = residuals @ np.linalg.solve(omega, residuals) / m
        deviances.append(m * np.log(variance) + np.linalg.slogdet(omega)[1])
    return min(deviances) + (parameters + 2) * np.log(m)


@pytest.mark.parametrize(
    ("name", "parameters"), [("power", 2), ("exponential", 2), ("power to a level", 3)]
)
def test_a_laws_bic_is_that_of_dense_matrices_and_counts_its_parameters(
    name: str, parameters: int
) -> None:
    values = CURVES[name](N[:30]) * np.exp(noise(3, 0.5, 0.02, 30))
    fit = fit_decay(N[:30], values)
    law = fit.law if "level" in name else getattr(fit, name)
    assert law is not None
    assert law.name == name
    assert law.bic == pytest.approx(
        dense_bic(np.log(values) - np.log(law(N[:30])), parameters), abs=1e-6
    )


def test_a_level_whose_law_hardly_moves_the_curve_is_fitted_without_an_error() -> None:
    """Of this noise a law's column is smaller than another by more than 1e15."""
    values = np.exp(noise(99, 0.3, 0.3, 12) - 0.02 * N[:12])
    assert fit_decay(N[:12], values).verdict == "decay not shown"


@pytest.mark.parametrize("below", [1e-9, 1e-10, 0.0])
def test_the_first_value_at_the_floor_or_below_it_ends_the_fit(below: float) -> None:
    values = CURVES["power"](N)
    cut = values.copy()
    cut[50:] = below
    cut[60] = 1.0  # what noise lifts over the floor is no measurement
    fit, short = fit_decay(N, cut, floor=1e-9), fit_decay(N[:50], values[:50])
    assert (fit.used, fit.left_out) == (50, 150)
    assert fit.law == short.law
    few = fit_decay(N, np.where(N < 8, values, 0.0))
    assert (few.verdict, few.law, few.power, few.used, few.left_out) == (
        "too few",
        None,
        None,
        7,
        193,
    )


def test_over_seeds_is_students_interval() -> None:
    mean, low, high = fits.over_seeds([1.0, 2.0, 3.0])
    assert (mean, high - mean) == pytest.approx((2.0, 4.302653 / 3**0.5))
    assert mean - low == pytest.approx(high - mean)
    assert np.isnan(fits.over_seeds([1.0])[1:]).all()


@pytest.mark.parametrize(
    ("lengths", "values", "options", "message"),
    [
        (N, N[:-1], {}, r"one value a length, found \(200,\) lengths and \(199,\) values"),
        (N[::-1], N, {}, "increasing lengths"),
        (N - 1, N, {}, "lengths of at least 1"),
        (N, 2 - N, {}, "finite values of at least 0, found -1.0"),
        (N, N * np.nan, {}, "finite values of at least 0, found nan"),
        (N, N, {"floor": -1.0}, "expected a floor of at least 0"),
    ],
)
def test_refusals(
    lengths: np.ndarray, values: np.ndarray, options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_decay(lengths, values, **options)


def test_a_level_under_which_nothing_falls_earns_nothing() -> None:
    """It describes the curve best, but its rate may be 0."""
    power, other = (
        fits.Law(name, 1.0, 0.5, 1.5, 0.0, 0.0, bic)
        for name, bic in (("power", 0.0), ("exponential", 50.0))
    )
    levelled = fits.Law("power to a level", 1.0, -0.5, 2.5, 0.0, 0.1, -50.0)
    assert fits._judged({"power": power, "exponential": other}, [levelled], 100.0) == (
        "power",
        power,
    )
