"""A model that computes in another dtype, or with weights rounded to what a format of few bits
holds, out of the weights that the user's own model holds: no second copy of them.

`bridge.to(bfloat16)` and back leaves a 0.09 error in the logits: nothing here casts in place.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ostools import hooks
from ostools.ground import (
    OF_A_LEFT_HOOK,
    Conv1D,
    HookPoint,
    InputError,
    NonFiniteError,
    TransformerBridge,
    checked_arguments,
    chunk,
)
from ostools.hooks import FormatError
from ostools.hooks.register import remove_observers
from ostools.hooks.rounding import FLOATS, Format, integer_scale, stored
from ostools.hooks.torch_state import default_torch_state
from ostools.models.describe import metadata_of, named_weights, remember, require_as_loaded
from ostools.models.families import family_of
from ostools.models.lazy_cast import BLOCK, SMALL_WEIGHT, LazyCast, dense
from ostools.models.precision.scores import check_arithmetic, put_scores

Reader = Callable[..., Tensor]
Reading = Callable[[Tensor], tuple[Reader, tuple[Tensor, ...]]]
# What holds every number of a dtype; nothing has to be read to know it.
_WIDER = {
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64),
    torch.float16: (torch.float16, torch.float32, torch.float64),
    torch.float32: (torch.float32, torch.float64),
    torch.float64: (torch.float64,),
}


@checked_arguments(InputError)
@default_torch_state()
def view_in(
    model: TransformerBridge, dtype: torch.dtype, *, eager: bool = False
) -> TransformerBridge:
    """A model that computes what loading the weights of `model` in `dtype` gives, and reads them
    from `model`. `eager`: in 16 bits, with attention's scores rounded to them ("bfloat16-eager").

    A weight is rounded to `dtype` where an operation reads it, and dropped after it (`LazyCast`); a
    model that is in `dtype` already is read as it is. Rotary frequencies stay float32, as
    transformers loads them; the tokenizer is shared. The view is for one measurement: of weights
    that are changed meanwhile it sees some changes and others not.

    Memory: 24 MiB of a matrix in `dtype` where a product reads it, which the thread keeps; a whole
    matrix where another operation does; and all weights of at most `SMALL_WEIGHT` bytes. Time: a
    cast of every weight at every forward or backward pass. Raises `InputError` while hooks are on
    the model: the view would run them, and they would not know it.
    """
    if not dtype.is_floating_point:
        raise InputError(f"dtype: expected a floating dtype such as torch.float64, found {dtype!r}")
    _refuse_hooked(model)
    return _view(model, dtype, eager=eager)


@default_torch_state()
def edited_view(model: TransformerBridge, what: str) -> TransformerBridge:
    """A float32 view of a model for one measurement (`view_in`), with the edits that stand on the
    model at the same hook points. What is captured of the model stays that of its own passes.

    Our edits are functions of the tensor that passes, in whatever dtype. Raises `InputError` in the
    name of `what` for a hook of somebody else, which may know the module that it was made for.
    """
    for edit in hooks.active_edits(model):
        if edit.kind == "foreign":
            raise InputError(
                f"{what} of a {next(model.parameters()).dtype} model needs a float32 view, which "
                f"the hook of somebody else at {edit.where} would not follow; load the model with "
                f"dtype='float32' and put it there{OF_A_LEFT_HOOK}"
            )
    result = _view(model, torch.float32)
    remove_observers(result)
    return result


@checked_arguments(InputError)
def view_rounded(model: TransformerBridge, format: Format) -> TransformerBridge:
    """A float32 view of `model` whose weights are the nearest that `format` holds (ties to even);
    tied ones stay tied.

    bfloat16, float16, float8_e4m3fn, float8_e5m2: every parameter. int8, int4: matrices, symmetric
    with a scale per output channel (the largest magnitude of a Linear's row, of a token's or a
    position's row of an embedding, over 127 or 7); gains of norms and biases stay float32, as
    quantisers leave them. Integer scales are found from the weights in float32.

    Cost: reads every weight once, then rounds a weight wherever it is read (`view_in`). Raises
    `InputError` for an unknown format, a weight that a floating format cannot hold, and while hooks
    are on the model.
    """
    _refuse_hooked(model)
    _require_held(model, format)
    if format in FLOATS:
        return _view(
            model, torch.float32, lambda weight: (partial(_rounded, format=format), (weight,))
        )
    # GPT-2's projections are stored [in, out], where everybody else's are [out, in].
    inputs_first = {id(module.weight) for module in model.modules() if isinstance(module, Conv1D)}

    def reading(weight: Tensor) -> tuple[Reader, tuple[Tensor, ...]]:
        if weight.ndim != 2:
            return torch.Tensor.float, (weight,)
        inputs, numbers = 0 if id(weight) in inputs_first else 1, dense(weight)
        largest = torch.maximum(
            numbers.amax(inputs, keepdim=True), -numbers.amin(inputs, keepdim=True)
        ).float()
        scale = integer_scale(largest, format)
        return partial(_rounded, format=format), (weight, scale.expand(weight.shape))

    return _view(model, torch.float32, reading)


def _rounded(weight: Tensor, scale: Tensor | None = None, *, format: str) -> Tensor:
    return stored(weight.float(), format, scale)


def _view(
    model: TransformerBridge,
    dtype: torch.dtype,
    reading: Reading | None = None,
    *,
    eager: bool = False,
) -> TransformerBridge:
    """A model in `dtype` whose weights are what `reading` makes of those of `model`: a function,
    and what it reads; None: a cast. Hooks stand at the same hook points.
    """
    require_as_loaded(model)
    family = family_of(model)
    if family is not None:
        check_arithmetic(family, eager)
    cast = partial(torch.Tensor.to, dtype=dtype)
    memo = _copied(model, dtype, reading or (lambda weight: (cast, (weight,))))
    result: TransformerBridge = copy.deepcopy(model, memo)
    for block in result.blocks:
        # TransformerLens' own hooks are closures over the block that they were made for: a copied
        # one would write into the original, and raise once that is gone.
        block._teardown_capture_hooks()
        block._maybe_wire_capture_hooks()
    for module in result.modules():
        exact = getattr(module, "scalar_embed_scale", None)
        if isinstance(exact, float):  # Gemma's sqrt(d_model): rounded once, not through a dtype
            module.embed_scale.fill_(exact)  # pyright: ignore[reportCallIssue]
    result.cfg.dtype = dtype
    result.original_model.config.dtype = dtype  # pyright: ignore[reportArgumentType]
    put_scores(result, eager)
    remember(result, metadata_of(model))
    return result


def _copied(model: TransformerBridge, dtype: torch.dtype, reading: Reading) -> dict[int, object]:
    """What stands in a copy in the place of each tensor of the model, by its id: deepcopy takes
    what its memo already holds, and so copies the modules, and no weight.
    """
    memo: dict[int, object] = {id(model.tokenizer): model.tokenizer}
    for parameter in model.parameters():
        read, stored = reading(parameter)
        parts = tuple(part.detach() for part in stored)
        is_small = parameter.numel() * dtype.itemsize <= SMALL_WEIGHT
        numbers = read(*parts) if is_small else LazyCast(read, parts, dtype)
        memo[id(parameter)] = nn.Parameter(numbers, parameter.requires_grad)
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and not name.endswith("inv_freq"):
            memo[id(buffer)] = buffer.detach().to(dtype, copy=True)
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn:  # a pattern that a module keeps
                memo[id(value)] = value.detach()
    return memo


def _refuse_hooked(model: TransformerBridge) -> None:
    """`InputError` while hooks are on the model: a view that lives longer would keep them."""
    observed = [
        module.name
        for module in model.modules()
        if isinstance(module, HookPoint) and module.fwd_hooks
    ]
    hook_places = [edit.where for edit in hooks.active_edits(model)] or observed
    if hook_places:
        raise InputError(
            "expected a model without hooks to read in another dtype, found one at "
            f"{hook_places[0]}: leave its with-block first, and open it again on the view"
            f"{OF_A_LEFT_HOOK}"
        )


def _require_held(model: TransformerBridge, format: str) -> None:
    """Every weight is finite, and within what a floating format holds: said before the run, with
    the weight's name.
    """
    for name, weight in named_weights(model):
        if format not in FLOATS and weight.ndim > 2:
            raise InputError(
                f"{format}: expected matrices, of which each output has a scale, found {name} with "
                f"{weight.ndim} axes, the weights of experts; use one of {', '.join(FLOATS)}"
            )
        if format in FLOATS or weight.ndim == 2:
            scale = None if format in FLOATS else torch.ones((), device=weight.device)
            try:
                for rows in _row_blocks(weight):
                    stored(rows.float(), format, scale, name)
            except FormatError as error:
                raise NonFiniteError(str(error)) from None


def holds(model: TransformerBridge, dtype: torch.dtype) -> bool:
    """Whether every weight of the model is a number of `dtype` already, so that storing it there
    changes nothing.
    """
    return all(
        bool(torch.equal(rows.to(dtype).to(rows.dtype), rows))
        for _, weight in named_weights(model)
        if dtype not in _WIDER.get(weight.dtype, ())
        for rows in _row_blocks(weight)
    )


def _row_blocks(weight: Tensor) -> Iterator[Tensor]:
    """The weight, so many rows at a time that another dtype of a large one does not stand beside
    it.
    """
    rows = max(1, chunk(BLOCK) // max(1, weight[0].numel() * weight.element_size()))
    return (dense(part) for part in weight.split(rows))
