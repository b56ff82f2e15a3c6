"""Checks of the paper's lemmas and propositions on random numbers, for `ostools reproduce`.

Each statement is checked under its hypotheses, and once more without one of them, where the check
passes only if the statement breaks. The tests in tests/theory/ try many more numbers. Cost: a
second; no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import pandas as pd
import torch
from torch import Tensor

from ostools.results import Provenance, Result
from ostools.theory import lemmas
from ostools.theory.decoder import Decoder
from ostools.theory.distances import total_variation

ALL_HYPOTHESES = (
    "all hypotheses"  # of the statement; any other value names the one that is left out
)
BOS, DIGIT_ZERO, DIGIT_ONE = 0, 1, 2
LENGTHS, FAR, SPREAD = (2, 8, 64, 512), 4096, 4.0  # bounded scores lie within SPREAD of each other


@dataclass(frozen=True)
class Check:
    """`figure`, which `computed` describes, `relation` ("<=" or ">=") `required`, under
    `hypotheses`.
    """

    computed: str
    figure: float
    relation: str
    required: float
    hypotheses: str = ALL_HYPOTHESES

    @property
    def passed(self) -> bool:
        """True if the relation holds; never for a figure that is not a number."""
        return (
            self.figure <= self.required if self.relation == "<=" else self.figure >= self.required
        )


def random_scores(seed: int, *shape: int) -> Tensor:
    """Scores drawn uniformly from 0 to 1, in float64."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_pattern(seed: int, n: int) -> lemmas.Matrix:
    """Causal softmax of scores within `SPREAD` of each other."""
    return lemmas.causal_softmax(SPREAD * random_scores(seed, n, n))


def softmax_distance(x: Tensor, x_star: Tensor) -> float:
    """Delta = sum |y - y*| of two softmaxes."""
    return float(total_variation(x.softmax(-1), x_star.softmax(-1)))


def softmax_decrease(seed: int) -> list[Check]:
    """Lemma B.1: an inserted score takes weight from the last one; where scores are bounded, ever
    less.
    """
    losses, ratios = [], []
    for n in LENGTHS:
        scores = SPREAD * random_scores(seed, 20, n + 1)
        x, x_star = lemmas.inserted(scores[:, :-2], scores[:, -2], scores[:, -1])
        weight, weight_star = x.softmax(-1)[:, -1], x_star.softmax(-1)[:, -1]
        losses.append(float(((weight - weight_star) / weight).amin()))
        ratios.append(float((weight - weight_star).amax()) / lemmas.decrease_bound(SPREAD, n))
    falling = torch.cat([-torch.arange(1.0, FAR).double(), torch.zeros(2).double()])
    x, x_star = lemmas.inserted(falling[:-2], falling[-2], falling[-1])
    unbounded = float(x.softmax(-1)[-1] - x_star.softmax(-1)[-1])
    return [
        Check("least share of its weight that the last token loses", min(losses), ">=", 1e-5),
        Check(
            "decrease / its bound e^{2s} / (n (n + 1)), greatest over n",
            max(ratios),
            "<=",
            1.0 + 1e-9,
        ),
        Check(
            f"decrease at n = {FAR:,}, scores -k", unbounded, ">=", 0.1, "without bounded scores"
        ),
    ]


def vanishing_noise(seed: int) -> list[Check]:
    """Lemma 4.1 / B.2: noise on the first scores leaves delta within a bound that falls
    as 1 / n.
    """
    places, noise, x = 20, 0.1, random_scores(seed, max(LENGTHS))
    x_star = x + noise * random_scores(seed + 1, len(x)) * (torch.arange(len(x)) < places)
    bounds = {n: lemmas.first_places_bound(places, noise, 1.0, n) for n in LENGTHS}
    ratio = max(softmax_distance(x[:n], x_star[:n]) / bound for n, bound in bounds.items())
    unbounded = -2.0 * torch.arange(1, FAR + 1, dtype=torch.float64).log()
    far = softmax_distance(unbounded, unbounded + (torch.arange(FAR) == 0))
    return [
        Check(
            "delta / (2 k e (e^0.1 - 1) / n), noise on k = 20, greatest over n",
            ratio,
            "<=",
            1.0 + 1e-9,
        ),
        Check(f"delta at n = {FAR:,}, scores -2 log i", far, ">=", 0.3, "without bounded scores"),
    ]


def alternation(seed: int) -> list[Check]:
    """Lemma B.4, of one pair of sequences: 0101... and 1010... stay 2 (e - 1) / (e + 1) apart at
    even lengths.
    """
    error = max(abs(softmax_distance(*lemmas.alternating(n)) - lemmas.ALTERNATING) for n in LENGTHS)
    return [Check("greatest error of delta = 2 (e - 1) / (e + 1) over even n", error, "<=", 1e-12)]


def largest_eigenvalue(seed: int) -> list[Check]:
    """Lemma B.6, by dense linear algebra, which does not know that the matrix is triangular."""
    pattern = random_pattern(seed, 24)
    error = abs(float(torch.linalg.eigvals(pattern).abs().amax()) - 1.0)
    alone = torch.cat([pattern[:-1], torch.eye(24, dtype=torch.float64)[-1:]])
    simple, double = (float(lemmas.eigenvectors(matrix)) for matrix in (pattern, alone))
    return [
        Check("distance of the largest |eigenvalue| from 1, 24 tokens", error, "<=", 1e-10),
        Check("multiplicity of the eigenvalue 1", simple, "<=", 1.0),
        Check(
            "multiplicity of the eigenvalue 1",
            double,
            ">=",
            2.0,
            "without two non-zero entries a row",
        ),
    ]


def products(seed: int) -> list[Check]:
    """Lemma B.7: products of row-stochastic triangular matrices are row-stochastic and
    triangular.
    """
    layers = [random_pattern(seed + layer, 32) for layer in range(16)]
    ahead = [layers[0], random_scores(seed, 32, 32).softmax(-1), *layers[2:]]
    stated, broken = (
        [lemmas.defect(p) for p in lemmas.upward(chain)][1:] for chain in (layers, ahead)
    )
    words = "error of row sums, of signs and above the diagonal, products of 2 to 16"
    return [
        Check(f"greatest {words}", max(stated), "<=", 1e-12),
        Check(f"least {words}", min(broken), ">=", 1e-6, "without triangular factors"),
    ]


def limit(seed: int) -> list[Check]:
    """Proposition 5.2 / B.8: ((Lambda + I) / 2)^L, Theorem 5.1's bound for equal layers, moves all
    to token 1.
    """
    pattern, identity = random_pattern(seed, 8), torch.eye(8, dtype=torch.float64)
    power = torch.linalg.matrix_power(lemmas.lazy(pattern), 16)[-1]
    error = float((lemmas.theorem_51_row(pattern, 16) - power).abs().amax())
    mass, identity_mass = (
        lemmas.first_token_distance(matrix, FAR) for matrix in (pattern, identity)
    )
    words = f"greatest mass of a row off token 1, L = {FAR:,}"
    return [
        Check("greatest error of Theorem 5.1's bound against ((Λ + I) / 2)^16", error, "<=", 1e-12),
        Check(words, mass, "<=", 1e-9),
        Check(words, identity_mass, ">=", 0.5, "without two non-zero entries a row (Λ = I)"),
    ]


def random_decoder(seed: int, positions: str = "none", causal: bool = True) -> Decoder:
    """Two random layers of width 32."""
    return Decoder.random(
        seed, d_model=32, n_layers=2, d_mlp=64, positions=positions, causal=causal
    )


def type_spread(decoder: Decoder, *sequences: Sequence[int]) -> float:
    """Greatest relative spread of representations within a token type, over sequences of
    token ids.
    """
    tokens = [torch.tensor(ids) for ids in sequences]
    return lemmas.type_spread([decoder.forward(ids[None]).y[0] for ids in tokens], tokens)


def same_ratio(seed: int) -> list[Check]:
    """Proposition 6.1 / B.9: sequences with the same ratio of types have one representation per
    type.
    """
    short, long = (DIGIT_ONE, DIGIT_ZERO), (DIGIT_ONE, DIGIT_ONE, DIGIT_ZERO, DIGIT_ZERO)
    averaging = random_decoder(seed, causal=False)
    spreads = {
        "with another ratio": type_spread(averaging, short, long[:3]),
        "with a BOS token": type_spread(averaging, (BOS, *short), (BOS, *long)),
        "with the causal mask": type_spread(random_decoder(seed), short, long),
        "with positions": type_spread(
            random_decoder(seed, positions="rope", causal=False), short, long
        ),
    }
    words = "relative spread within a type over two sequences, two layers"
    stated = Check(words, type_spread(averaging, short, long), "<=", 1e-10)
    return [stated, *(Check(words, spread, ">=", 1e-6, name) for name, spread in spreads.items())]


def same_answers(seed: int) -> list[Check]:
    """Corollary 6.2 / B.10: counts n whose prompts (BOS 0 1...1) have one representation get one
    answer.
    """
    decoder, longest = random_decoder(seed), 1024
    y = decoder.forward(torch.tensor([[BOS, DIGIT_ZERO, *[DIGIT_ONE] * longest]])).y[
        0, 2:
    ]  # one causal pass holds every n
    rounded, cast = y.to(torch.bfloat16), decoder.to(torch.bfloat16)
    # A product for each, as a kernel may depend on the size.
    answers = torch.stack([cast.logits(row[None, None])[0, 0] for row in rounded])
    sums = rounded.double().cumsum(0) @ cast.W_U.double()
    identical = lemmas.identical_next(rounded)
    alike, choice = float(identical.sum()), answers.argmax(-1)
    # n and n + 1 are different counts: where both get the same token, one of them gets the wrong
    # one.
    both_right = float((identical & (choice[1:] != choice[:-1])).sum())
    extra, extra_of_sums = (
        float(lemmas.second_answers(rounded, interventions)) for interventions in (answers, sums)
    )
    words = f"answers beyond one for each representation, {longest} counts, y in bfloat16"
    return [
        Check(words, extra, "<=", 0.0),
        Check(f"pairs n, n + 1 to {longest} with one representation, bfloat16", alike, ">=", 1.0),
        Check(
            "of these pairs, those of which neither has to be given the wrong count",
            both_right,
            "<=",
            0.0,
        ),
        Check(words, extra_of_sums, ">=", 1.0, "with a readout of every position"),
    ]


LEMMAS: dict[str, Callable[[int], list[Check]]] = {
    "B.1": softmax_decrease,
    "4.1/B.2": vanishing_noise,
    "B.4": alternation,
    "B.6": largest_eigenvalue,
    "B.7": products,
    "5.2/B.8": limit,
    "6.1/B.9": same_ratio,
    "6.2/B.10": same_answers,
}


def lemma_checks(seed: int = 0) -> Result:
    """Table of all checks on numbers drawn from `seed`, one a row: lemma, the fields of `Check`,
    passed.
    """
    rows = [
        {"lemma": lemma, **asdict(check), "passed": check.passed}
        for lemma, run in LEMMAS.items()
        for check in run(seed)
    ]
    return Result(pd.DataFrame(rows), Provenance.without_model(seed=seed))
