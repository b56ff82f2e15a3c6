"""What a collapse measurement takes: passes in float64 and in each precision, and the distances of every pair."""

from __future__ import annotations

from collections.abc import Sequence

from ostools.measure.collapse.distances import CHUNK, logits_rows
from ostools.measure.passes.cost import AS_STORED, BLOCK, QUESTION, Cost, PromptTokens, one_pass, pass_bytes, work_in
from ostools.measure.passes.precisions import Precision
from ostools.models.shape import Shape

_VIEW = 4000  # small operations of a view of a block's modules
_GROUP = 192  # branches of one pass


def collapse_cost(
    shape: Shape, tokens: PromptTokens, dtypes: Sequence[str], *, layers: int = 1, seeds: int = 1
) -> Cost:
    """`tokens`: of the longer prompt of every pair; `layers`: so many residual streams are compared."""
    precisions = [Precision.named(name) for name in dtypes]
    runs = [8, *(precision.dtype.itemsize for precision in precisions if precision.name != "float64")]
    # Weights that a precision rounds have a float64 run of their own; those of a 16-bit model in its own dtype are rounded
    # already, which is not known before they are read.
    runs += [8 for element in runs[1:] if element < shape.element]
    passes = sum((_passes(shape, tokens, element) for element in runs), Cost())
    pairs = len(tokens.prompts)
    chunks = (min(pairs, CHUNK // width + 1) * width for width in (shape.d_vocab, shape.d_model))
    distances = 12 * 8 * max(chunks)
    kept = 2 * 8 * 2 * pairs * (layers - 1) * shape.d_model  # last tokens alone, in float64 and in the precision
    logits = 2.0 * shape.d_vocab * shape.d_model * 2 * pairs * len(runs)
    # A check reads every row, and the table every row. The curves read those of the float64 run once more. A prompt that goes
    # through the model by itself reads the unembedding for one row, twice.
    together = logits_rows(shape.d_vocab)
    parts = -(-2 * pairs // together)
    reads = sum(((2 + (element == 8)) * parts + 2 + 2 * _probes(element)) * _read(shape, element) for element in runs)
    held = min(pairs, together) * shape.d_vocab * 2 * sum(runs)
    read = Cost(distances + kept + held, double=logits, cast=float(shape.d_vocab * shape.d_model * reads))
    both = passes + read + Cost(operations=1.0 * pairs * QUESTION)
    return Cost(passes.memory + read.memory) + both * seeds


def _passes(shape: Shape, tokens: PromptTokens, element: int) -> Cost:
    """The longest prompt in one pass, the others as branches off it; by a loop under hooks. And prompts in passes of their own:
    some that check it, and in 16 bits those of the lengths that decide a collapse length, mostly two."""
    trunk, pairs = max(tokens.prompts), len(tokens.prompts)
    branches = (2 * tokens.after + 1) * pairs  # v, then v* with one token more, off the trunk
    probes = _probes(element)
    work = one_pass(shape, 1, trunk) * (1 + probes) + branches * one_pass(shape, 1, trunk) / trunk
    passes = 2 + probes + branches // _GROUP
    if tokens.hooked:
        work, passes = sum(2 * one_pass(shape, 1, pos) for pos in tokens.prompts), 2 * pairs
    cast = element != shape.element
    memory = pass_bytes(shape, 1, trunk, 1, element) + (shape.view_bytes(element) if cast else 0)
    operations = 2.0 * passes * shape.n_layers * BLOCK + cast * shape.n_layers * _VIEW
    read = float(passes * shape.n_layers * shape.block_parameters * cast * _read(shape, element))
    return work_in(element, work) + Cost(memory, cast=read, operations=operations)


def _probes(element: int) -> int:
    """Prompts that go through the model once more, by themselves."""
    return 9 if element == 2 else 1


def _read(shape: Shape, element: int) -> float:
    """A number that is read for a few vectors takes so many times as long as one that is cast to float32."""
    return AS_STORED if element == shape.element else 1.5 if element == 8 else 1.0
