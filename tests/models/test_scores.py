"""Attention's arithmetic in 16 bits: scores and softmax in float32, as sdpa has them; eager as a
choice with a name.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.masking_utils import eager_mask

import ostools as ost
from ostools import hooks
from ostools.measure.answers.answers import answers
from ostools.models.families import family_of_config
from ostools.models.lens import FLOAT32_SCORES
from ostools.models.load import wrapped
from ostools.models.precision.scores import attention_of, own_attention
from tests.checkpoints import FAMILIES, Family, make_model, write_checkpoint
from tests.families import NOT_EAGER, OTHERS
from tests.generic_models import COMMON, GENERIC, generic_model
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 40), generator=torch.Generator().manual_seed(7))
EVERY = tuple(
    family for family in (*FAMILIES, *OTHERS) if family != "gemma3-multimodal"
)  # Gemma 3's text part
OWN_EAGER = ("falcon", "bloom", "mpt")
"""Families whose attention in transformers does not go through its `AttentionInterface`."""
LARGE = 30.0


def _large(family: Family, dtype: torch.dtype) -> PreTrainedModel:
    """Queries and keys (biases too) so large that scores have no bits left for what they differ by
    in bfloat16.
    """
    model, numbers = make_model(family, dtype=dtype), dict(make_model(family).named_parameters())
    for name, weight in model.named_parameters():
        factor = (
            LARGE**0.5
            if any(part in name for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
            else 1.0
        )
        weight.data.copy_((factor * numbers[name].data).to(torch.bfloat16))
    return model


def _bridge(model: PreTrainedModel, *, eager: bool = False) -> Any:
    family = family_of_config(model.config.to_dict())
    assert family is not None
    return wrapped(copy.deepcopy(model), family, "made", eager)


def _in_float32(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention written out: everything between q, k, v and z in float32."""
    q, k, v = query.float(), key.float(), value.float()
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
    scores = q @ k.mT * options["scaling"]
    if options.get("softcap") is not None:
        scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
    assert attention_mask is not None
    scores = scores.masked_fill(attention_mask < -1, -torch.inf)
    if hasattr(module, "sinks"):
        sinks = module.sinks.float()[None, :, None, None].expand(*scores.shape[:-1], 1)
        pattern = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        pattern = torch.softmax(scores, -1)
    return (pattern @ v).to(query.dtype).transpose(1, 2).contiguous(), None


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AttentionInterface._global_mapping, "test-float32", _in_float32)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "test-float32", eager_mask)


@pytest.mark.parametrize("family", quick(EVERY, "gemma2", "qwen2", "gpt2", "olmo2"))
@pytest.mark.parametrize("dtype", quick([torch.bfloat16, torch.float16], torch.bfloat16))
def test_16_bit_logits_are_those_of_scores_in_float32(family: Family, dtype: torch.dtype) -> None:
    """By attention that is written out here, in Hugging Face's own model; it differs by what the
    order of sums rounds.
    """
    if family in OWN_EAGER:
        pytest.skip("test_16_bit_noise_is_that_of_sdpa has this family")
    own = _large(family, dtype)
    with torch.no_grad(), attention_of(own, "test-float32"):
        expected = own(IDS, use_cache=False).logits
    logits = _bridge(own)(IDS)
    assert logits.dtype == dtype
    # A sum in another order may round one number of the residual stream by a step, which then
    # grows.
    assert (
        float((logits.float() - expected.float()).norm() / expected.float().norm())
        < 2 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("kind", quick(["olmo", "arcee", "ernie4_5"], "olmo"))
def test_a_model_without_a_record_keeps_its_16_bit_scores_in_float32(
    kind: str, tmp_path: Path
) -> None:
    """By the generic route, whose code is transformers' own: equal to the bit."""
    generic_model(kind).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    loaded = ost.load_model(tmp_path, dtype="bfloat16")
    with torch.no_grad(), attention_of(model, FLOAT32_SCORES):
        assert torch.equal(loaded(IDS), model(IDS, use_cache=False).logits)
    with torch.no_grad(), attention_of(model, "eager"):
        assert not torch.equal(loaded(IDS), model(IDS, use_cache=False).logits)


@pytest.mark.parametrize("family", quick(EVERY, "qwen2", "phi"))
def test_16_bit_noise_is_that_of_sdpa(family: Family) -> None:
    """The distance to float32 of our pass is at most that of transformers' default; of families
    without sdpa, of eager.
    """
    own = _large(family, torch.bfloat16)
    exact = _large(family, torch.float32)(IDS, use_cache=False).logits
    with attention_of(own, "sdpa" if own._supports_sdpa else "eager"):
        theirs = own(IDS, use_cache=False).logits.float()
    ours = _bridge(own)(IDS).float()
    # Experts are chosen anew where rounding decides: there the noise of either may be the larger by
    # chance.
    factor = 4.0 if family in ("olmoe", "gpt-oss", "mixtral", "qwen3-moe") else 1.5
    assert float((ours - exact).norm()) <= factor * float((theirs - exact).norm())


def _with_common_part(dtype: torch.dtype) -> PreTrainedModel:
    """Qwen 2 as it is published: biases give every query and key a part of 30 in the slowest pair
    of rotated components, so that 640 is added to every score, where neighbouring bfloat16 numbers
    are 4 apart."""
    model, numbers = make_model("qwen2", dtype=dtype), dict(make_model("qwen2").named_parameters())
    d_head = model.config.hidden_size // model.config.num_attention_heads
    for name, weight in model.named_parameters():
        value = numbers[name].data.clone()
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            value.view(-1, d_head)[:, [d_head // 2 - 1, d_head - 1]] = 30.0
        weight.data.copy_(value.to(torch.bfloat16))
    return model


def test_eager_scores_are_another_model_where_they_are_large() -> None:
    """So the tests above see the difference that they are about."""
    own = _with_common_part(torch.bfloat16)
    exact = _with_common_part(torch.float32)(IDS, use_cache=False).logits
    noise = {
        eager: float((_bridge(own, eager=eager)(IDS).float() - exact).norm())
        for eager in (False, True)
    }
    assert torch.equal(_bridge(own, eager=True)(IDS), own(IDS, use_cache=False).logits)
    with attention_of(own, "sdpa"):
        assert noise[False] < 1.05 * float(
            (own(IDS, use_cache=False).logits.float() - exact).norm()
        )
    assert noise[True] > 2 * noise[False]


@pytest.mark.parametrize(
    "family", quick([name for name in EVERY if name not in ("falcon",)], "llama", "gemma3")
)
def test_own_attention_is_sdpa_to_the_bit_or_nothing(family: Family) -> None:
    own = _large(family, torch.bfloat16)
    bridge = _bridge(own)
    plain = bridge(IDS)
    with own_attention(bridge):
        inside = bridge(IDS)
    if bridge.blocks[0].attn.can_delegate:
        with attention_of(own, "sdpa"):
            plain = own(IDS, use_cache=False).logits
    assert torch.equal(inside, plain)
    assert bridge.original_model.config._attn_implementation == "eager"


def test_own_attention_gives_way_to_hooks_and_to_other_dtypes() -> None:
    """An edit of the pattern acts: the pass under it is that without `own_attention`."""
    bridge = _bridge(_large("llama", torch.bfloat16))
    with torch.no_grad(), hooks.scale_scores(bridge, 0.5):
        expected = bridge(IDS)
        with own_attention(bridge):
            assert torch.equal(bridge(IDS), expected)
    wide = _bridge(_large("llama", torch.float32))
    with torch.no_grad(), own_attention(wide):
        assert not wide.blocks[0].attn.delegates
    assert not wide.blocks[0].attn.can_delegate  # nor was it tried at load, in two more passes


def test_answers_in_bfloat16_are_transformers_own(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "qwen2")
    own = make_model("qwen2", dtype=torch.bfloat16)
    model = ost.load_model(folder, dtype="bfloat16")
    prompts = [ost.Prompt.from_ids(model, IDS[0, :length].tolist()) for length in (5, 11, 24)]
    with attention_of(own, "sdpa"):
        for prompt in prompts:
            written = own.generate(  # pyright: ignore[reportCallIssue]
                prompt.ids[None],
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            (answer,) = answers(model, [prompt], max_new_tokens=12)
            assert answer.ids == tuple(written[0, len(prompt.ids) :].tolist())


def test_the_arithmetic_stands_in_the_provenance(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama")
    for name, attention in (
        ("bfloat16", "float32 scores"),
        ("bfloat16-eager", "eager"),
        ("float32", "eager"),
    ):
        described = ost.models.describe(ost.load_model(folder, dtype=name))
        assert (described.dtype, described.attention_implementation) == (name, attention)
    pairs = ost.collapse(
        ost.load_model(folder), "figure-5a", lengths=[8], dtypes=["bfloat16", "bfloat16-eager"]
    )
    assert {"bfloat16", "bfloat16-eager"} <= set(pairs.frame["dtype"])
    with pytest.raises(
        ost.InputError, match="unknown dtype 'bfloat16-eagre': did you mean 'bfloat16-eager'"
    ):
        ost.load_model(folder, dtype="bfloat16-eagre")


@pytest.mark.parametrize("family", NOT_EAGER)
def test_eager_is_refused_where_it_is_not_written_again(family: Family, tmp_path: Path) -> None:
    with pytest.raises(ost.InputError, match="expected attention with its scores in float32 for"):
        ost.load_model(write_checkpoint(tmp_path, family), dtype="bfloat16-eager")


def test_attention_that_asks_for_its_own_name_is_refused(tmp_path: Path) -> None:
    """DeepSeek 3.2 leaves its selection of keys to functions of other names; in bfloat16 it was
    dense without a word.
    """
    sizes = GENERIC["deepseek_v3"] | {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 2}
    config = AutoConfig.for_model("deepseek_v32", **COMMON | sizes)
    own = (
        AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        .eval()
        .requires_grad_(False)
    )
    own.save_pretrained(tmp_path)
    with pytest.raises(
        ost.InputError,
        match="whose own code computes it: ask for float32, or for 'bfloat16-eager', as it is",
    ):
        ost.load_model(tmp_path, dtype="bfloat16")
    with pytest.raises(ost.InputError, match="whose own code computes it"):
        ost.models.view_in(ost.load_model(tmp_path), torch.bfloat16)
    ost.load_model(tmp_path, dtype="bfloat16-eager")


def test_sdpa_that_another_function_replaces_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ost.load_model(write_checkpoint(tmp_path, "llama"), dtype="bfloat16")
    prompt = ost.Prompt.from_ids(model, IDS[0, :5].tolist())
    answers(model, [prompt], max_new_tokens=2)
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", _in_float32)
    with pytest.raises(ost.InputError, match="expected attention that is transformers' own"):
        answers(model, [prompt], max_new_tokens=2)
