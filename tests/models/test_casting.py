"""A view in another dtype: what loading in that dtype gives, out of the user's own weights; rounded
weights against Hugging Face's own model with weights rounded by hand.
"""

import gc
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.hooks.rounding import FLOATS, FORMATS
from ostools.models import describe, lazy_cast, load_model, view_in
from ostools.models.describe import named_weights
from ostools.models.lazy_cast import LazyCast
from ostools.models.precision import casting
from ostools.models.precision.casting import holds, view_rounded
from tests.checkpoints import (
    EVERY_TEXT_FAMILY,
    FAMILIES,
    TWO_FAMILIES,
    Family,
    make_model,
    refused,
    tiny_model,
    write_checkpoint,
)
from tests.families import EXPERTS
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 30), generator=torch.Generator().manual_seed(3))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no weight that would be read as those of a large one are."""
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


@pytest.mark.parametrize("dtype", quick(DTYPES, torch.bfloat16), ids=str)
@pytest.mark.parametrize("family", quick(FAMILIES, "gemma3", "gpt2"))
def test_a_view_is_what_loading_in_that_dtype_gives(
    family: Family, dtype: torch.dtype, tmp_path: Path
) -> None:
    # 40 is no square: sqrt(d_model) must be rounded to the new dtype, not through the old one
    model = load_model(write_checkpoint(tmp_path, family, d_model=40))
    before = {name: tensor.clone() for name, tensor in _tensors(model).items()}
    logits = model(IDS)
    seen, fresh = (
        view_in(model, dtype),
        load_model(tmp_path, dtype=str(dtype).removeprefix("torch.")),
    )

    assert torch.equal(seen(IDS), fresh(IDS))
    assert seen(IDS).dtype == dtype
    assert seen.cfg.dtype == fresh.cfg.dtype == dtype
    assert describe(seen) == describe(fresh)
    expected = _tensors(fresh)
    for name, tensor in _tensors(seen).items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name

    for name, tensor in _tensors(model).items():
        assert tensor.dtype == before[name].dtype, name
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(model(IDS), logits)


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_view_has_no_weights_of_its_own(family: Family) -> None:
    """What is not small is read from the model at every use: a weight that changes there has
    changed here.
    """
    model = tiny_model(family, fresh=True)
    seen = view_in(model, torch.float64)
    stored = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    for name, weight in seen.named_parameters():
        assert isinstance(weight, LazyCast), name
        assert weight.stored.untyped_storage().data_ptr() in stored, name
    assert seen.tokenizer is model.tokenizer
    assert seen.cfg is not model.cfg
    logits = seen(IDS)
    model.W_E.mul_(2.0)
    assert not torch.equal(seen(IDS), logits)
    with (
        torch.no_grad(),
        pytest.raises(InputError, match="expected a weight of the model itself to write to"),
    ):
        seen.W_E.mul_(2.0)


@pytest.mark.parametrize("family", quick(TWO_FAMILIES, "gemma3"))
def test_a_view_outlives_its_model_and_writes_nothing_into_it(family: Family) -> None:
    model = tiny_model(family, fresh=True)
    logits, attention = model(IDS), model.blocks[0].attn
    seen = view_in(model, torch.float32)
    attention._captured_pre_ln_residual = None
    assert torch.equal(seen(IDS), logits)
    assert attention._captured_pre_ln_residual is None
    del model, attention
    gc.collect()
    assert torch.equal(seen(IDS), logits)


def test_the_unembedding_goes_in_blocks_and_of_the_embedding_the_rows_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, made = tiny_model("gemma", dtype=torch.bfloat16), list[int]()
    plain, room = LazyCast.dense, lazy_cast._room
    monkeypatch.setattr(LazyCast, "dense", lambda self: made.append(self.numel()) or plain(self))
    monkeypatch.setattr(
        lazy_cast, "_room", lambda count, dtype: made.append(count) or room(count, dtype)
    )
    monkeypatch.setattr(lazy_cast, "PART", 8 * 1000)
    seen, ids = view_in(model, torch.float64), IDS[:, :5]
    embedded = seen.input_to_embed(ids)[0]
    assert max(made) == 5 * seen.cfg.d_model
    made.clear()
    y = torch.randn(3, int(seen.cfg.d_model), dtype=torch.float64)
    logits = seen.unembed(y)
    assert max(made) <= 1000
    torch.testing.assert_close(logits, y @ model.W_U.double(), rtol=1e-14, atol=1e-14)
    assert torch.equal(embedded, model.W_E.double()[ids] * float(model.cfg.d_model) ** 0.5)


def test_a_product_in_16_bits_rounds_no_partial_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of whole numbers beyond what bfloat16 holds: exact, then rounded once, however the
    stored matrix lies.
    """
    monkeypatch.setattr(lazy_cast, "PART", 2 * 8 * 3)
    stored = torch.ones(513, 8)
    x = torch.ones(2, 513, dtype=torch.bfloat16)
    for matrix in (stored, stored.mT.contiguous().mT):
        seen = LazyCast(partial(torch.Tensor.to, dtype=torch.bfloat16), (matrix,), torch.bfloat16)
        assert torch.equal(x @ seen, torch.full((2, 8), 513.0).bfloat16())


def test_a_backward_pass_reads_the_weights_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd keeps the view of a weight and no cast of it, and its gradient is that of the cast
    weight, to the bit.
    """
    weight = torch.randn(7, 5).bfloat16()
    seen = LazyCast(torch.Tensor.double, (weight,), torch.float64)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(3, 7, dtype=torch.float64)
    product = torch.nn.functional.linear(x, seen)
    kept = [value for value in vars(type(product.grad_fn)) if value.startswith("_saved")]
    assert any(isinstance(getattr(product.grad_fn, name), LazyCast) for name in kept)
    (found,) = torch.autograd.grad(product, x, gradient)
    assert torch.equal(found, gradient @ weight.double())


# ---- weights rounded to a format

LARGEST = {"int8": 127, "int4": 7}


def by_hand(module: Any, format: str) -> None:
    """Round the parameters of a Hugging Face model where they lie: row by row of what its layers
    multiply with.
    """
    conv = {id(layer.weight) for layer in module.modules() if type(layer).__name__ == "Conv1D"}
    for parameter in module.parameters():
        weight: Tensor = parameter.data
        if format in FLOATS:
            weight.copy_(weight.to(FLOATS[format]).float())
        elif weight.ndim == 2:
            for channel in weight.T if id(parameter) in conv else weight:
                scale = float(channel.abs().max()) / LARGEST[format]
                channel.copy_((channel.double() / scale).round() * scale)


@pytest.mark.parametrize("family", quick(EVERY_TEXT_FAMILY, "gemma3", "gpt2"))
def test_a_rounded_copy_is_the_model_with_rounded_weights(family: Family) -> None:
    model = tiny_model(family, seed=2)
    logits, before = model(IDS), {name: weight.clone() for name, weight in named_weights(model)}
    for format in FORMATS:
        if family in EXPERTS and format in LARGEST:
            words = f"{format}: expected matrices, .* the weights of experts"
            refused(words, view_rounded, model, format)
            continue
        module = make_model(family, seed=2)
        by_hand(module, format)
        expected = module(IDS, use_cache=False).logits
        found = view_rounded(model, format)(IDS)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert float((found - logits).abs().max()) > 1e-4 * float(logits.abs().max())
    assert torch.equal(model(IDS), logits)
    assert all(torch.equal(weight, before[name]) for name, weight in named_weights(model))


@pytest.mark.parametrize("format", ["bfloat16", "int8"])
def test_tied_weights_stay_tied_and_views_views(format: Any) -> None:
    gemma, gpt2 = (view_rounded(tiny_model(family), format) for family in ("gemma", "gpt2"))
    module: Any = gemma.original_model
    assert module.lm_head.weight is module.model.embed_tokens.weight
    attention = gpt2.blocks[0].attn
    assert attention.q.weight.stored.data_ptr() == attention.qkv.weight.stored.data_ptr()


def test_what_a_dtype_holds() -> None:
    model = tiny_model("llama")
    assert holds(model, torch.float64)
    assert not holds(model, torch.bfloat16)
    assert holds(view_rounded(model, "bfloat16"), torch.bfloat16)
    given = tiny_model("llama", fresh=True)
    for weight in given.parameters():
        weight.data.copy_(weight.bfloat16())
    assert holds(given, torch.bfloat16)
    next(given.parameters()).data[0] += 1e-6
    assert not holds(given, torch.bfloat16)


def test_refusals() -> None:
    model = tiny_model("llama", fresh=True)
    with pytest.raises(InputError, match=r"format: expected .*, found 'int16': did you mean"):
        view_rounded(model, cast(Any, "int16"))
    with hooks.ablate_heads(model, [(0, 0)]):
        model(IDS)
        refused(
            "expected a model without hooks to read in another dtype", view_rounded, model, "int8"
        )
    model.W_E[3, 4] = 449.0
    with pytest.raises(
        InputError,
        match=r"embed_tokens.weight: expected finite numbers up to 448 to store as float8_e4",
    ):
        view_rounded(model, "float8_e4m3fn")
    view_rounded(model, "float8_e5m2")
    model.W_E[3, 4] = float("nan")
    refused("found nan", view_rounded, model, "int8")
