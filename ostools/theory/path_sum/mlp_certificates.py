"""The norms of an MLP's Jacobians from above, proved by one direction each and a crude look at what is beside it.

D = W_down (diag(p) W_gate + diag(q) W_up) and P = D D^T. For a unit vector u with theta = ||D^T u||^2, r = ||P u - theta u||
and any tau < theta that the second eigenvalue of P does not exceed,

    theta <= ||D||^2 <= theta + r^2 / (theta - tau)

(Temple: (P - lambda_1)(P - tau) is positive semidefinite, so that r^2 + (theta - lambda_1)(theta - tau) >= 0). theta and r take
six products of vectors with the weights, in float64. D itself, d x d, is formed for tau alone, in float32: tau may be off by
what lies between the first two eigenvalues. With the k orthonormal rows of V, T = V P V^T, R = V P - T V and

    z^2 = ||P||_F^2 - ||T||_F^2 >= ||Z||_F^2,    Z = (I - V^T V) P (I - V^T V)

P has as many eigenvalues above tau > z as T + R (tau - Z)^-1 R^T has (Haynsworth's inertia of a Schur complement), and that is
no more than T + R R^T / (tau - z) has. Where it is one at most, tau is proved.

Rounding, with gamma_k of `certificates` and A = |diag(p)| |W_gate| + |diag(q)| |W_up| entry by entry: float32 forms D to within
gamma ||W_down||_F ||A||_F in Frobenius norm, casts included, and D D^T to within gamma ||D||_F^2 of the D that it has; float64
gives D^T u and D y to within gamma ||W_down||_F ||A||_F and ||y|| times that. V is as orthonormal as float64 measures it: there
is an exact one within 1.1 ||V V^T - I||_F. Every loss is in the bound, and so is what either precision may flush to zero, after
powers of two have brought the largest entry of each factor to [1/2, 1). What is proved is the norm of the exact product.

What stays unproved (two largest singular values too near each other, rounding too coarse, no number) is left to
`certified_norms` of the D that float64 forms.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ostools.theory.path_sum import operators
from ostools.theory.path_sum.certificates import TOLERANCE, Values, certified_norms, gamma, scaled
from ostools.theory.path_sum.operators import SQUARES, Down, Factor, Up, chunks

Squares = Float[Tensor, "pos d_model d_model"]
Rows = Float[Tensor, "pos few d_model"]

QUOTIENT = "by one direction"
"""How a norm was proved here, beside the `OUTCOMES` of squaring."""
FEW, STEPS = 12, 4
"""Rows of V, and products with P that turn random rows into them."""
SMALLEST = 48
"""Of a smaller d_model squaring costs no more."""
_SINGLE, _DOUBLE = torch.float32, torch.float64


def certified_mlp_norms(
    down: Down, gate: Up, up: Up | None, p: Factor, q: Factor | None, tally: Counter[str] | None = None
) -> Values:
    """A proved upper bound of each ||D||_2 in float64, within 0.1% of it but where rounding allows for no more.

    `tally` counts `QUOTIENT` and the `OUTCOMES`. What is not finite stays so. Cost of each: 2 d^2 (ff + d) operations in
    float32, 12 d ff in float64; of what is left to squaring, 2 d^2 ff in float64 and that of `certified_norms` beside.
    """
    found, proved = torch.zeros_like(p[:, 0], dtype=_DOUBLE), torch.zeros_like(p[:, 0], dtype=torch.bool)
    if len(down) >= SMALLEST and down.dtype == _DOUBLE:
        factors = _Factors(down, gate, up)
        for part in chunks(len(p), 3 * len(down) ** 2 * _SINGLE.itemsize, SQUARES):
            found[part], proved[part] = factors.norms(p[part], None if q is None else q[part])
            if 2 * int(proved[part].sum()) < len(proved[part]):
                break  # float32 is too coarse for these weights, or the two largest values too near: no more is tried
    rest = (~proved).nonzero()[:, 0]
    if len(rest):
        squared = partial(certified_norms, tally=tally)
        found[rest] = operators.mlp_norms(down, gate, up, p[rest], None if q is None else q[rest], squared)
    if tally is not None:
        tally[QUOTIENT] += len(p) - len(rest)
    return found


class _Factors:
    """The weights with their largest entries in [1/2, 1), in both precisions."""

    def __init__(self, down: Down, gate: Up, up: Up | None) -> None:
        exponents = [_exponent(down), _exponent(gate if up is None else torch.cat([gate, up]))]
        self.exponent = exponents[0] + exponents[1]
        self.down, self.gate = scaled(down, -exponents[0]), scaled(gate, -exponents[1])
        self.up = None if up is None else scaled(up, -exponents[1])
        d_model, d_mlp = down.shape
        up_single = None if self.up is None else self.up.to(_SINGLE)
        self.single = (self.down.to(_SINGLE), self.gate.to(_SINGLE), up_single)
        self.start = operators.orthogonal_probes(d_model, FEW, 0, self.single[0]).mT.contiguous()
        self.forming, self.squaring = gamma(d_mlp + 16, _SINGLE), gamma(d_model + 8, _SINGLE)
        self.vectors = gamma(d_mlp + d_model + 16, _DOUBLE)
        # A number flushed to zero is smaller than 2^-126, in either precision.
        self.flushed = float(d_model + d_mlp) ** 2 * 2.0**-100
        self.vanished = d_model * 2.0**-62

    def norms(self, p: Factor, q: Factor | None) -> tuple[Values, Bool[Tensor, " pos"]]:
        """Upper bounds, and which of them are proved, within `TOLERANCE`."""
        both = p if q is None or self.up is None else torch.cat([p, q], 1)
        exponent = _exponent(both, 1)
        p = scaled(p, -exponent)
        q = None if q is None or self.up is None else scaled(q, -exponent)
        sizes = self.sizes(p, q)
        slopes = p.to(_SINGLE), None if q is None else q.to(_SINGLE)
        jacobian = operators.mlp_jacobian(*self.single, *slopes)
        direction, tau, separated = self.second(torch.bmm(jacobian, jacobian.mT), sizes)
        below, above = self.sides(direction, tau, p, q, sizes)
        below, above = below.clamp_min(0.0).sqrt(), above.sqrt() * (1 + 8 * torch.finfo(_DOUBLE).eps)
        proved = separated & (below > 0) & (above <= below * (1 + TOLERANCE))
        # To scale a bound back may round it, where it ends among the subnormal numbers.
        back = torch.nextafter(scaled(above, exponent + self.exponent), above.new_tensor(math.inf))
        return back, proved & torch.isfinite(back)

    def sizes(self, p: Factor, q: Factor | None) -> Values:
        """||W_down||_F ||A||_F, from above."""
        rows = p.abs() * self.gate.norm(dim=1)
        if q is not None and self.up is not None:
            rows += q.abs() * self.up.norm(dim=1)
        return self.down.norm() * rows.norm(dim=1) * (1 + 1e-9)

    def second(
        self, power: Squares, sizes: Values
    ) -> tuple[Float[Tensor, "pos d_model"], Values, Bool[Tensor, " pos"]]:
        """Directions u, numbers tau, and where at most one eigenvalue of P is proved to be larger; `power`: P in float32."""
        trace = power.diagonal(dim1=1, dim2=2).sum(1, dtype=_DOUBLE)
        formed = 2 * self.squaring * (trace * (1 + 2 * self.squaring) + self.flushed) + self.flushed
        # Rows in float32, where the squares of entries below 2^-63 are lost.
        lengths = torch.linalg.vector_norm(power, dim=2).double()
        size = lengths.norm(dim=1) * (1 + 2 * self.squaring) + self.vanished
        error = self.forming * sizes + self.flushed
        off = formed + error * (2 * (size + formed).sqrt() + error)
        whole = size + off
        basis = self.basis(power, trace)
        rows = basis.double()
        moved = torch.bmm(basis, power).double()
        eye = torch.eye(FEW, dtype=_DOUBLE, device=rows.device)
        skew = (rows @ rows.mT - eye).square().sum((1, 2)).sqrt() + 1e-12
        inner = moved @ rows.mT
        inner = (inner + inner.mT) / 2
        residual = moved - inner @ rows
        # T to within `lost`, R to within 3 `lost`, in Frobenius norm, where `skew` is 0.1 at most.
        lost = 1.1 * (1.1 * off + 4 * self.squaring * FEW**0.5 * whole) + (3 * skew + 1e-12) * whole
        z = (whole.square() - (inner.norm(dim=(1, 2)) - lost).clamp_min(0.0).square()).clamp_min(0.0).sqrt()
        across = residual @ residual.mT
        usable = (skew <= 0.1) & torch.isfinite(whole + inner.sum((1, 2)) + across.sum((1, 2)))
        inner = torch.where(usable[:, None, None], inner, eye)
        values, turned = torch.linalg.eigh(inner)
        tau = values[:, -1] - (values[:, -1] - values[:, -2]) / 4
        beside = 1.125 * across + 9 * (3 * lost).square()[:, None, None] * eye
        room = torch.where(usable & (tau > z), tau - z, math.inf)[:, None, None]
        complement = torch.where(torch.isfinite(room), inner + beside / room, inner)
        second = torch.linalg.eigvalsh(complement)[:, -2] + lost + 1e-12 * whole
        direction = (turned[:, None, :, -1] @ rows)[:, 0]
        direction = direction / direction.norm(dim=1, keepdim=True)
        return direction, tau, usable & (tau > z) & (second <= tau)

    def basis(self, power: Squares, trace: Values) -> Rows:
        """Rows near the largest eigenvectors, orthonormal to rounding."""
        rows = self.start @ power
        for _ in range(STEPS - 1):
            rows = torch.bmm(rows / trace.to(_SINGLE)[:, None, None], power)
        return torch.linalg.qr(torch.nan_to_num(rows, 0.0, 0.0, 0.0).mT).Q.mT

    def sides(
        self, u: Float[Tensor, "pos d_model"], tau: Values, p: Factor, q: Factor | None, sizes: Values
    ) -> tuple[Values, Values]:
        """theta, and theta + r^2 / (theta - tau), each with what float64 may have lost; infinite where tau is no less."""
        inner = u @ self.down
        moved = (p * inner) @ self.gate
        if q is not None and self.up is not None:
            moved += (q * inner) @ self.up
        theta = moved.square().sum(1)
        inner = p * (moved @ self.gate.mT)
        if q is not None and self.up is not None:
            inner += q * (moved @ self.up.mT)
        r = (inner @ self.down.mT - theta[:, None] * u).norm(dim=1)
        slack = 16 * self.vectors * sizes.square() + self.flushed
        below = theta - slack
        above = theta + slack + (r + slack).square() / (below - tau)
        return below, torch.where(below > tau, above, math.inf)


def _exponent(values: Tensor, dim: int | None = None) -> Tensor:
    """e with the largest entry in [2^(e-1), 2^e); 0 where it is 0 or no number."""
    size = values.abs().amax() if dim is None else values.abs().amax(dim)
    return torch.frexp(torch.where(torch.isfinite(size), size, 0.0)).exponent
