"""Lemmas B.6 and B.7 and Proposition 5.2 / B.8 on triangular matrices: softmax over random scores, made by hand, with ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.experiments.lemmas.check import Check, Checked, curves, points
from ostools.theory import spectra
from ostools.theory.lemmas import stochastic as lemmas

Matrix = Float[Tensor, "query key"]

_DEPTH, _POWER = 64, 4096


def _scores(generator: torch.Generator, n: int) -> Matrix:
    return torch.randn(n, n, generator=generator, dtype=torch.float64)


def largest_eigenvalue(seed: int, pattern: Callable[[Tensor], Tensor] = lemmas.causal_softmax) -> Checked:
    """Lemma B.6, the spectrum from dense linear algebra, which does not know that the matrix is triangular."""
    generator = torch.Generator().manual_seed(seed)
    off, miscounted, found = 0.0, 0, []
    for n in (1, 2, 3, 8, 24):
        for sharp in (0.0, 1.0, 2.0):
            matrix = pattern(sharp * _scores(generator, n))
            off = max(off, abs(float(torch.linalg.eigvals(matrix).abs().amax()) - 1.0))
            # Tokens that attend to themselves alone, from none to all of tokens 2 to n.
            for alone in sorted({0, 1, n // 2, n - 1} & set(range(n))):
                chosen = 1 + torch.randperm(n - 1, generator=generator)[:alone]
                stuck = matrix.clone()
                stuck[chosen] = torch.eye(n, dtype=matrix.dtype)[chosen]
                dimension = lemmas.eigenvectors(stuck)
                miscounted += dimension != 1 + alone
                if n == 24 and sharp == 1.0:
                    found.append((alone, dimension))
    sharpest = pattern(1000.0 * _scores(generator, 24))
    leaky = 1.1 * pattern(_scores(generator, 24))
    checks = [
        Check("greatest distance of the largest |eigenvalue| from 1 (n to 24)", off, "<=", 1e-10),
        Check(
            "matrices in which the multiplicity of the eigenvalue 1 is not 1 + (number of tokens i >= 2 with A_ii = 1)",
            float(miscounted),
            "=",
            0.0,
        ),
        Check(
            "multiplicity of the eigenvalue 1 where tokens 2 to 24 attend to token 1 alone (one non-zero entry a row)",
            float(lemmas.eigenvectors(_first(24))),
            "=",
            1.0,
        ),
        Check(
            "multiplicity of the eigenvalue 1 where token 24 attends to itself alone",
            float(_with_last_alone(pattern(_scores(generator, 24)))),
            "=",
            2.0,
            hypotheses="without two non-zero entries a row",
        ),
        Check(
            "multiplicity of the eigenvalue 1 at scores of ±1000, where weights round to 0 and 1",
            float(lemmas.eigenvectors(sharpest)),
            ">",
            1.0,
            hypotheses="without exact arithmetic",
        ),
        Check(
            "largest |eigenvalue| with rows that sum to 1.1",
            float(torch.linalg.eigvals(leaky).abs().amax()),
            ">=",
            1.05,
            hypotheses="without rows that sum to 1",
        ),
    ]
    places, dimensions = zip(*found, strict=True)
    table = curves(
        points("24 tokens", places, dimensions),
        points("24 tokens", places, [1 + place for place in places], "predicted"),
    )
    return Checked(checks, table)


def _with_last_alone(matrix: Matrix) -> int:
    stuck = matrix.clone()
    stuck[-1] = torch.eye(len(matrix), dtype=matrix.dtype)[-1]
    return lemmas.eigenvectors(stuck)


def products(seed: int, pattern: Callable[[Tensor], Tensor] = lemmas.causal_softmax) -> Checked:
    """Lemma B.7: products of row-stochastic triangular matrices are row-stochastic and triangular, to rounding."""
    generator = torch.Generator().manual_seed(seed)
    layers = [pattern(sharp * _scores(generator, 32)) for sharp in (0.1, 1.0, 10.0, 100.0) * (_DEPTH // 4)]
    defects = [spectra.defect(product) for product in spectra.upward(layers)]
    *_, product = spectra.upward(layers[:4])
    diagonals = torch.stack([spectra.eigenvalues(layer) for layer in layers[:4]]).prod(0)
    spectrum = torch.linalg.eigvals(product).abs().sort().values
    off = float((spectrum - diagonals.sort().values).abs().amax())
    cut = [layer.tril(-1) + torch.diag(0.9 * layer.diagonal()) for layer in layers]
    ahead = [layers[0], _scores(generator, 32).softmax(-1), *layers[2:]]
    broken = {
        "without rows that sum to 1": [spectra.defect(product) for product in spectra.upward(cut)],
        "without triangular factors": [spectra.defect(product) for product in spectra.upward(ahead)],
    }
    checks = [
        Check(
            f"greatest error of row sums, of signs and above the diagonal, products of 1 to {_DEPTH}",
            max(defects),
            "<=",
            1e-12,
        ),
        Check(
            "greatest error of the eigenvalues of a product of 4, against the products of diagonals", off, "<=", 1e-6
        ),
        *(
            Check(
                f"least error of row sums, of signs and above the diagonal, products of 2 to {_DEPTH}",
                min(found[1:]),
                ">=",
                1e-6,
                hypotheses=hypotheses,
            )
            for hypotheses, found in broken.items()
        ),
    ]
    depth = range(1, _DEPTH + 1)
    parts = [points(name, depth, values) for name, values in ({"as stated": defects} | broken).items()]
    return Checked(checks, curves(*parts))


def limit(seed: int, diagonal: Sequence[float] = (1.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.4)) -> Checked:
    """Proposition 5.2 / B.8: ((Lambda + I) / 2)^L puts everything on token 1, at the rate max_{i>=2} (1 + Lambda_ii) / 2."""
    generator = torch.Generator().manual_seed(seed)
    matrices = {
        "Λ_ii from 0.1 to 0.9": lemmas.with_diagonal(torch.tensor(diagonal, dtype=torch.float64), seed),
        "softmax of random scores": lemmas.causal_softmax(_scores(generator, 8).clamp(-2.0, 2.0)),
        "uniform": lemmas.causal_softmax(torch.zeros(8, 8, dtype=torch.float64)),
        "three tokens, not diagonalizable": lemmas.coupled(),
        "ties: every Λ_ii = 0.6": lemmas.with_diagonal(torch.tensor([1.0, *[0.6] * 7], dtype=torch.float64), seed),
    }
    left = {name: spectra.remainders(spectra.lazy(matrix), 1024).tolist() for name, matrix in matrices.items()}
    powers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    worst = max(
        (
            left[name][power - 1] / lemmas.remainder_bound(matrix, power)
            for name, matrix in matrices.items()
            for power in powers
        ),
    )
    furthest = max(lemmas.first_token_distance(matrix, _POWER) for matrix in matrices.values())
    first = next(iter(matrices))
    observed, rate = left[first][500] / left[first][499], lemmas.lazy_rate(matrices[first])
    theorem = max(_theorem_error(matrix, blocks) for matrix in matrices.values() for blocks in (1, 2, 16, 64))
    jordan = max(_jordan_error(power) for power in powers)
    stuck = {"Λ = I": torch.eye(8, dtype=torch.float64), "Λ_44 = 1": _stuck(matrices[first], 3)}
    kept = {name: spectra.remainders(spectra.lazy(matrix), 1024).tolist() for name, matrix in stuck.items()}
    checks = [
        Check(
            "greatest error of Theorem 5.1's bound at β_1 = β_2 = σ = 1, β_3 = 4^L, against ((Λ + I) / 2)^L",
            theorem,
            "<=",
            1e-12,
        ),
        Check(
            f"greatest distance of a row of ((Λ + I) / 2)^L from token 1 alone, L = {_POWER:,}", furthest, "<=", 1e-9
        ),
        Check(
            "the last token's mass off token 1 / its bound sum_k binom(L, k) ρ^(L-k) ν^k, greatest over L",
            worst,
            "<=",
            1.0,
            1e-9,
        ),
        Check(
            "eigenvectors for 3/4, a double eigenvalue of (Λ + I) / 2 for a Λ of three tokens: the proof's "
            "diagonalisation fails",
            float(lemmas.eigenvectors(spectra.lazy(lemmas.coupled()), 0.75)),
            "=",
            1.0,
        ),
        Check(
            "greatest error of the powers for that Λ, against (1 - q^L - L q^(L-1) / 8, L q^(L-1) / 8, q^L)",
            jordan,
            "<=",
            1e-12,
        ),
        Check("rate at L = 500 against max (1 + Λ_ii) / 2", observed, "=", rate, 1e-6),
        Check(
            "the last token's mass off token 1 at L = 1,024, Λ = I",
            kept["Λ = I"][-1],
            "=",
            1.0,
            hypotheses="without two non-zero entries a row",
        ),
        Check(
            "the last token's mass off token 1 at L = 1,024, Λ_44 = 1",
            kept["Λ_44 = 1"][-1],
            ">=",
            1e-6,
            hypotheses="without two non-zero entries a row",
        ),
    ]
    shown = range(1, 201)
    parts = [points(name, shown, values[:200]) for name, values in (left | kept).items()]
    parts += [
        points(
            name, shown, [left[name][199] * lemmas.lazy_rate(matrix) ** (power - 200) for power in shown], "predicted"
        )
        for name, matrix in list(matrices.items())[:1]
    ]
    return Checked(checks, curves(*parts))


def _theorem_error(matrix: Matrix, blocks: int) -> float:
    power = torch.linalg.matrix_power(spectra.lazy(matrix), blocks)[-1]
    return float((lemmas.theorem_51_row(matrix, blocks) - power).abs().amax())


def _jordan_error(power: int) -> float:
    row = torch.linalg.matrix_power(spectra.lazy(lemmas.coupled()), power)[-1]
    return max(abs(one - other) for one, other in zip(row.tolist(), lemmas.coupled_row(power), strict=True))


def _first(n: int) -> Matrix:
    """Every token attends to token 1 alone."""
    return torch.eye(n, dtype=torch.float64)[:1].expand(n, n).clone()


def _stuck(matrix: Matrix, token: int) -> Matrix:
    stuck = matrix.clone()
    stuck[token] = torch.eye(len(matrix), dtype=matrix.dtype)[token]
    return stuck
