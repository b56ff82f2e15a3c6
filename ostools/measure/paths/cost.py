"""What path sums take: the blocks read in turns, and the norms that each variant takes of them."""

from __future__ import annotations

from collections.abc import Sequence

from ostools.ground.chunks import chunk as chunk_of
from ostools.measure.formulas.forward import KEPT, kept_weights
from ostools.measure.jacobian.memory import ALLOCATOR
from ostools.measure.passes.cost import BLOCK, EIGENVALUES, QUESTION, Cost, in_full, one_pass, work_in
from ostools.measure.paths.predicted import FACTOR, PROBES, chosen_traces, kernel_operations
from ostools.measure.paths.variants import variant_named
from ostools.models.shape import Shape
from ostools.theory.path_sum.operators import CHUNK_BUDGET

PROOF = 7
"""A proof of the norm by repeated squaring in place of those eigenvalues."""
SMALL_PROOF = 24
"""The same of a pair's small matrix, where calls and small products take their time too."""
_SIMPLE = ("uniform", "local", "rollout", "cesaro")
"""They read no head's pattern alone."""
_SHAPES = ("rollout", "cesaro")
"""Predictions that carry no second moments."""
_WITHOUT_MLP = ("theorem-5.1", "theorem-5.1-literal", "multi-head")
"""They have a constant in place of the MLP's norms."""
_PAIRS = ("heads", "edge", "windowed")
"""They take a norm of every pair of tokens."""


def path_sum_cost(
    shape: Shape,
    pos: int,
    variants: Sequence[str],
    *,
    mlp_norm: str = "certified",
    traces: str = "auto",
    positions: str = "last",
) -> Cost:
    """Of a prompt of `pos` tokens, all variants out of the same blocks."""
    work, known = in_full(shape), [variant_named(name) for name in variants]
    traces = chosen_traces(shape, pos) if traces == "auto" else traces
    predicted = [one for one in known if one.kind == "predicted"]
    live = any(one.linearisation == "full" for one in known)
    element = work.element if len(predicted) == len(known) else 8
    heads = any(one.kind != "paper" and one.name not in _SIMPLE for one in known)
    kernels = [one for one in predicted if one.name not in ("second-moment-diagonal", "cesaro")]
    last = pos if positions == "all" else 1
    memory = _reading(work, pos, heads=heads, live=live) + 2 * element * shape.block_parameters
    memory += kept_weights(shape, element)
    bounds = [one.name for one in known if one.kind != "predicted"]
    columns = min(shape.d_model, FACTOR) if traces == "probes" else shape.d_model
    memory += _terms(shape, pos, element, columns if predicted else 0, bounds)
    memory += last * len(kernels) * work.element * (pos**2 + 2 * shape.d_model * columns)
    if any(one.name.endswith("-full") for one in predicted):
        memory += _met(shape, pos, traces, element)
    products = _norms(shape, pos, bounds, mlp_norm)
    products += sum(_kernel(shape, pos, traces, one.name) * last for one in predicted if one.name not in _SHAPES)
    products += 2 * one_pass(work, 1, pos) / shape.n_layers
    each = work_in(element, shape.n_layers * products)
    read = 3.0 * shape.n_layers * shape.block_parameters
    operations = 4.0 * shape.n_layers * BLOCK + QUESTION
    return each + work_in(work.element, 2 * one_pass(work, 1, pos)) + Cost(memory, cast=read, operations=operations)


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


def _terms(shape: Shape, pos: int, element: int, columns: int, bounds: Sequence[str]) -> int:
    """Matrices beside a block's weights: of two directions, ff x `columns` each where they meet the MLP's output and twice for
    what it reads of them and of the probes; of a direction, d x `columns` through every head; of a position's Jacobian, ff x d
    and d x d; of a pair's, as many again."""
    directions = columns * (9 * shape.d_mlp + 4 * (shape.n_heads + 1) * shape.d_model) * element
    position = (shape.d_mlp + shape.d_model) * shape.d_model * element
    together = min(pos * position, max(position, chunk_of(CHUNK_BUDGET)))
    pairs = any(name.startswith(_PAIRS) for name in bounds)
    live = pairs and any(name.endswith("-full") for name in bounds)
    jacobians = (1 + 2 * pairs + 3 * live) * together if bounds else 0
    return max(directions, jacobians) + 8 * shape.d_model**2 * element


def _met(shape: Shape, pos: int, traces: str, element: int) -> int:
    """What every direction asked for meets in the queries and in the keys, kept; as much again while the second is made."""
    directions = shape.d_model if traces == "exact" else min(shape.d_model, PROBES)
    return 4 * shape.n_heads * pos * shape.d_head * directions * element


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


def _kernel(shape: Shape, pos: int, traces: str, name: str) -> float:
    """Products of one step of the second moments, to one last position."""
    attention = 0 if name == "second-moment-diagonal" else 4 * shape.n_heads * pos**3
    return float(attention) + kernel_operations(shape, pos, traces, full=name.endswith("-full"))
