"""What path sums take: the blocks read in turns, and the norms that each variant takes of them."""

from __future__ import annotations

from collections.abc import Sequence

from ostools.ground.chunks import chunk as chunk_of
from ostools.measure.formulas.forward import KEPT, kept_weights
from ostools.measure.jacobian.memory import ALLOCATOR, sensitivity_cost
from ostools.measure.passes.cost import BLOCK, EIGENVALUES, QUESTION, Cost, in_full, one_pass, work_in
from ostools.measure.paths.belief import COTANGENTS
from ostools.measure.paths.variants import variant_named
from ostools.models.shape import Shape
from ostools.theory.path_sum.operators import CHUNK_BUDGET

PROOF = 7
"""A proof of the norm by repeated squaring in place of those eigenvalues."""
SMALL_PROOF = 24
"""The same of a pair's small matrix, where calls and small products take their time too."""
_ELEMENT = 8
"""Bytes of a number: blocks are read in float64."""
_SIMPLE = ("uniform", "local", "rollout", "cesaro")
"""They read no head's pattern alone."""
_WITHOUT_MLP = ("theorem-5.1", "theorem-5.1-literal", "multi-head")
"""They have a constant in place of the MLP's norms."""
_PAIRS = ("heads", "edge", "windowed")
"""They take a norm of every pair of tokens."""


def path_sum_cost(shape: Shape, pos: int, variants: Sequence[str], *, mlp_norm: str = "certified") -> Cost:
    """Of a prompt of `pos` tokens, all variants out of the same blocks."""
    work, known = in_full(shape), [variant_named(name) for name in variants]
    live = any(one.linearisation == "full" for one in known)
    heads = any(one.kind != "paper" and one.name not in _SIMPLE for one in known)
    memory = _reading(work, pos, heads=heads, live=live) + 2 * _ELEMENT * shape.block_parameters
    memory += kept_weights(shape, _ELEMENT)
    bounds = [one.name for one in known if one.kind != "predicted"]
    memory += _terms(shape, pos, bounds)
    products = _norms(shape, pos, bounds, mlp_norm)
    products += 2 * one_pass(work, 1, pos) / shape.n_layers
    each = work_in(_ELEMENT, shape.n_layers * products)
    read = 3.0 * shape.n_layers * shape.block_parameters
    operations = 4.0 * shape.n_layers * BLOCK + QUESTION
    folded = each + work_in(work.element, 2 * one_pass(work, 1, pos)) + Cost(memory, cast=read, operations=operations)
    beside = tuple(dict.fromkeys(one.linearisation for one in known if one.kind != "certified"))
    if not beside:
        return folded
    # One after the other: the larger memory of the two, which is how costs add up.
    return folded + sensitivity_cost(shape, pos, beside, method="sketch", cotangents=COTANGENTS)


def _reading(shape: Shape, pos: int, *, heads: bool, live: bool) -> int:
    """O(n^2) numbers a head, of one block at a time: as the model runs it, then what is read off it.

    `heads`: a variant reads the heads' patterns one by one in float64; `live`: a variant of the real derivative. Measured on a
    CPU from 1,000 to 4,000 tokens it is within 30%, mostly below.
    """
    squares, square = shape.n_heads * pos**2 * shape.element, pos**2 * 8
    vectors = pos * (6 * shape.d_mlp + 20 * shape.d_model) * 8
    # Rows in float64, scores and what they are compared with.
    reading = squares + 5 * square + (2 if heads else 0) * squares + (18 if live else 0) * squares
    sites = shape.site_bytes(pos)
    kept = sites if sites <= chunk_of(KEPT) else 0
    return ALLOCATOR + kept + vectors + max(7 * squares // 2, reading)


def _terms(shape: Shape, pos: int, bounds: Sequence[str]) -> int:
    """Matrices beside a block's weights: ff x d and d x d for the Jacobian of a position, as many again for that of a pair."""
    position = (shape.d_mlp + shape.d_model) * shape.d_model * _ELEMENT
    together = min(pos * position, max(position, chunk_of(CHUNK_BUDGET)))
    pairs = any(name.startswith(_PAIRS) for name in bounds)
    live = pairs and any(name.endswith("-full") for name in bounds)
    jacobians = (1 + 2 * pairs + 3 * live) * together if bounds else 0
    return jacobians + 8 * shape.d_model**2 * _ELEMENT


def _norms(shape: Shape, pos: int, names: Sequence[str], mlp_norm: str) -> float:
    """Products of the norms that bounds take in one block."""
    names = [name for name in names if name not in _WITHOUT_MLP]
    if not names:
        return 0.0
    d, small = shape.d_model, min(shape.d_model, shape.n_key_value_heads * shape.d_head)
    ff = shape.d_mlp
    one = {"svd": EIGENVALUES, "certified": PROOF}.get(mlp_norm)
    if one is not None:
        each = pos * (3 * d**2 * ff + (2 + one) * d**3)
    elif mlp_norm == "frobenius":
        each = 2 * ff**2 * (4 * d + 3 * pos)
    else:  # "product": the weights' own norms
        each = 3 * (2 * d**2 * ff + EIGENVALUES * d**3)
    factored = each
    if mlp_norm == "certified":
        # In float32, where a product takes half, and from one direction each. It leaves nothing of some trained models to
        # squaring, and all of random weights.
        factored = pos * (1.25 * d**2 * ff + 2 * d**3 + 100 * d**2) + each / 2
    pairs = any(name.startswith(_PAIRS) for name in names)
    live = any(name.endswith("-full") for name in names)
    own = any(name.startswith(("edge", "windowed")) for name in names)
    total = float(factored * (1 + live) + each * own)
    small_one = SMALL_PROOF if mlp_norm == "certified" and not live else EIGENVALUES
    return total + pairs * pos**2 / 2 * (2 + small_one) * (min(d, 2 * small) if live else small) ** 3
