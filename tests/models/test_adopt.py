"""An adopted model gives the numbers of its weights saved and loaded, by equality; the user's
object stays as it was.
"""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import FalconMambaForCausalLM

import ostools as ost
from ostools.models import describe, load_model
from tests.checkpoints import EVERY_TEXT_FAMILY, Family, make_model, make_tokenizer, refused
from tests.generic_models import GENERIC, generic_model
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 7]
MEASURED: tuple[Callable[[Any, Any], Any], ...] = (
    lambda model, prompt: ost.sensitivity(model, prompt),
    lambda model, prompt: ost.attention(model, prompt),
    lambda model, prompt: ost.collapse(
        model, ost.tasks.RepeatedIds(IDS), lengths=[1, 3], dtypes=["float32", "bfloat16"]
    ),
)


def _saved(model: Any, path: Path, **options: Any) -> Any:
    model.save_pretrained(path)
    return load_model(path, **options)


def assert_same(adopted: Any, loaded: Any, measured: Any = MEASURED) -> None:
    for make in measured:
        one, two = (make(model, ost.Prompt.from_ids(model, IDS)) for model in (adopted, loaded))
        pd.testing.assert_frame_equal(one.frame, two.frame, check_exact=True)
    mine, theirs = (vars(describe(model)) for model in (adopted, loaded))
    assert {name for name in mine if mine[name] != theirs[name]} == {"name", "origin", "title"}
    assert (mine["origin"], theirs["origin"]) == ("adopted", None)


@pytest.mark.parametrize("family", quick(["gemma3", "gpt2"], "gpt2"))
def test_numbers_are_those_of_the_weights_saved_and_loaded(family: Family, tmp_path: Path) -> None:
    model = make_model(family)
    assert_same(ost.adopt(model), _saved(model, tmp_path))


def _state(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a user could notice."""
    named = list(model.named_parameters(remove_duplicate=False))
    return {
        "modules": [
            (name, id(part), type(part), part.training) for name, part in model.named_modules()
        ],
        "weights": [
            (name, id(weight), weight.data_ptr(), weight.requires_grad) for name, weight in named
        ],
        "values": [weight.detach().clone() for _, weight in named],
        "config": model.config.to_dict(),  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        "attention": model.config._attn_implementation,  # pyright: ignore[reportAttributeAccessIssue]
        "methods": [(name, sorted(vars(part))) for name, part in model.named_modules()],
    }


@pytest.mark.parametrize("family", quick(["gemma3", "gpt2", "neox"], "gpt2", "neox"))
def test_the_users_model_stays_as_it_was_and_no_weight_is_copied(
    family: Family, tmp_path: Path
) -> None:
    model = make_model(family)
    model.config._attn_implementation = "sdpa"
    model.train().requires_grad_(True)
    next(model.children()).eval()
    before = _state(model)
    adopted = ost.adopt(model)
    ost.sensitivity(adopted, ost.Prompt.from_ids(adopted, IDS))
    after = _state(model)
    for one, two in zip(before.pop("values"), after.pop("values"), strict=True):
        assert torch.equal(one, two)
    assert before == after
    assert not adopted.training
    assert not any(weight.requires_grad for weight in adopted.parameters())
    mine = {weight.untyped_storage().data_ptr() for weight in adopted.parameters()}
    theirs = {
        name: weight.untyped_storage().data_ptr() for name, weight in model.named_parameters()
    }
    copied = [name for name, address in theirs.items() if address not in mine]
    assert all("query_key_value" in name for name in copied)
    assert bool(copied) == (family == "neox")
    model(torch.tensor([IDS])).logits.sum().backward()
    assert_same(adopted, _saved(model, tmp_path), MEASURED[:1])


def test_edits_in_place_are_followed_by_numbers_and_hash(tmp_path: Path) -> None:
    model = make_model("gemma")
    adopted = ost.adopt(model)
    before = describe(adopted).weight_hash
    model.model.layers[1].mlp.up_proj.weight[3, 4] += 0.5
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] += 0.5  # which leaves no version behind
    assert describe(adopted).weight_hash != before
    assert_same(adopted, _saved(model, tmp_path), MEASURED[:1])


def _replaced(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.weight = nn.Parameter(
        torch.zeros_like(model.model.layers[0].mlp.up_proj.weight)
    )


def _new_data(model: Any) -> None:
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()


def _joint(model: Any) -> None:
    """The weight of which the adopted model has copies."""
    model.gpt_neox.layers[0].attention.query_key_value.weight.data[0, 0] += 1


@pytest.mark.parametrize(
    ("family", "change", "name"),
    [
        ("llama", _replaced, "up_proj"),
        ("llama", _new_data, "up_proj"),
        ("llama", lambda model: model.to(torch.float64), ""),
        ("neox", _joint, "query_key_value"),
    ],
)
def test_weights_that_were_replaced_since_are_refused(
    family: str, change: Callable[[Any], Any], name: str
) -> None:
    model = make_model(family)
    adopted = ost.adopt(model)
    describe(adopted)
    change(model)
    refused(
        rf"found .*{name}.* replaced since: .* adopt it again",
        ost.sensitivity,
        adopted,
        ost.Prompt.from_ids(adopted, IDS),
    )


def test_bfloat16_is_adopted_where_its_rotations_are_whole(tmp_path: Path) -> None:
    """`.to(bfloat16)` may round what a position is rotated by; a model that is loaded in bfloat16
    has it whole.
    """
    from transformers import AutoModelForCausalLM

    make_model("llama").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert_same(ost.adopt(model), load_model(tmp_path, dtype="bfloat16"), MEASURED[1:2])
    rounded: Any = make_model("llama")
    with pytest.raises(
        ost.InputError, match=r"expected .*inv_freq as the configuration says, found other numbers"
    ):
        ost.adopt(rounded.to(torch.bfloat16))


class Adapter(nn.Module):
    """An adapter around a layer, which is not merged into it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base


class Doubled(nn.Linear):
    """A layer that computes something else than its weights say."""


def _changed(config: Any) -> Any:
    other = copy.deepcopy(config)
    other.rms_norm_eps = 0.5
    return other


def _mlp(model: Any) -> Any:
    return model.model.layers[0].mlp


def _in_eight_bits(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.zeros_like(weight, dtype=torch.uint8), requires_grad=False)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "hook": (
        lambda model: model.model.layers[0].register_forward_hook(lambda *_: None),
        r"expected a model without hooks, found forward_hooks put into model\.layers\.0: remove it",
    ),
    "forward": (
        lambda model: setattr(_mlp(model), "forward", lambda x: x),
        r"expected (methods replaced = none|forward in model.layers.0.mlp = LlamaMLP.forward), .* found ",
    ),
    "adapter": (
        lambda model: setattr(_mlp(model), "up_proj", Adapter(_mlp(model).up_proj)),
        r"expected class in model\.layers\.0\.mlp\.up_proj = .*Linear.*, as its configuration says, found .*Adapter",
    ),
    "subclass": (
        lambda model: setattr(_mlp(model).up_proj, "__class__", Doubled),
        r"expected class in model\.layers\.0\.mlp\.up_proj = .*Linear.*, .* found .*Doubled.*: merge adapters",
    ),
    "scaling": (
        lambda model: setattr(model.model.layers[1].self_attn, "scaling", 0.3),
        r"expected scaling in model\.layers\.1\.self_attn = .*, as its configuration says",
    ),
    "two dtypes": (
        lambda model: _mlp(model).half(),
        r"expected model\.layers\.0\.mlp\.gate_proj\.weight in float32, in which transformers computes with it",
    ),
    "quantised": (
        lambda model: setattr(_mlp(model).up_proj, "weight", _in_eight_bits(_mlp(model).up_proj.weight)),
        r"expected model\.layers\.0\.mlp\.up_proj\.weight in float32, .* found Parameter of torch\.uint8: dequantise",
    ),
    "meta": (lambda model: model.to("meta"), r"expected a model with weights, found one on torch's meta device"),
    "more": (
        lambda model: setattr(model.model, "extra", nn.Linear(2, 2)),
        r"expected class in model\.extra = None, as its configuration says, found .*Linear",
    ),
    "bias beside": (
        lambda model: setattr(
            model.model.layers[0].self_attn.q_proj, "bias", nn.Parameter(torch.full((32,), 0.1))
        ),
        r"the weights of the configuration: .* Unexpected key\(s\) in state_dict: .model.layers.0.self_attn.q_proj.bias",
    ),
    "partial": (
        lambda model: setattr(_mlp(model), "forward", partial(lambda x: x)),
        r"expected (methods replaced = none|forward in model.layers.0.mlp = LlamaMLP.forward), .* found ",
    ),
    "none": (
        lambda model: setattr(model.model.norm, "variance_epsilon", None),
        r"expected variance_epsilon in model\.norm = 1e-06, .* found None",
    ),
    "function": (
        lambda model: setattr(_mlp(model), "act_fn", nn.SiLU()),
        "in model.layers.0.mlp.act_fn",
    ),
    "configuration": (
        lambda model: setattr(model.model, "config", _changed(model.config)),
        "expected one configuration in mine, found a module with another",
    ),
    "tied": (
        lambda model: setattr(model.config, "tie_word_embeddings", True),
        r"expected one weight as lm_head\.weight and as .*, found two that differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_what_its_configuration_says_is_refused(name: str) -> None:
    change, match = REFUSED[name]
    model = make_model("llama")
    change(model)
    refused(match, ost.adopt, model, name="mine")


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.gradient_checkpointing_enable(),
        lambda model: model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True),
    ],
)
def test_hooks_that_transformers_leaves_are_none_of_the_users(use: Callable[[Any], Any]) -> None:
    """One on the embedding, which only asks for gradients, and the observers of a pass that gives
    its states.
    """
    model = make_model("llama")
    expected = ost.adopt(make_model("llama"))(torch.tensor([IDS]))
    use(model)
    assert torch.equal(ost.adopt(model)(torch.tensor([IDS])), expected)


def test_tokenizers() -> None:
    adopted = ost.adopt(make_model("gemma"), tokenizer=make_tokenizer())
    assert ost.encode(adopted, "1").tokens == ("<bos>", "1")
    assert adopted.cfg.tokenizer_prepends_bos
    assert ost.adopt(make_model("gemma")).tokenizer is None
    with pytest.raises(
        ost.InputError, match="expected a tokenizer that fits an embedding of 40 rows"
    ):
        ost.adopt(make_model("gemma", d_vocab=40), tokenizer=make_tokenizer())


def test_saved_buffers_are_adopted_and_followed(tmp_path: Path) -> None:
    """The router's correction of DeepSeek V3 and dots1 is a buffer, and saved with the weights."""
    model = generic_model("dots1")
    bias = dict(model.named_buffers())["model.layers.1.mlp.gate.e_score_correction_bias"]
    bias.copy_(torch.tensor([0.5, -0.5, 0.0, 0.25]))
    adopted = ost.adopt(model)
    assert_same(adopted, _saved(model, tmp_path), MEASURED[:1])
    before = adopted(torch.tensor([IDS])), describe(adopted).weight_hash
    bias.copy_(torch.tensor([-0.5, 0.5, 0.25, 0.0]))
    after = adopted(torch.tensor([IDS])), describe(adopted).weight_hash
    assert not torch.equal(before[0], after[0])
    assert before[1] != after[1]
    model.get_submodule("model.layers.1.mlp.gate").e_score_correction_bias = bias.clone()
    with pytest.raises(ost.InputError, match="e_score_correction_bias replaced since"):
        describe(adopted)


def test_a_vocabulary_that_was_resized(tmp_path: Path) -> None:
    model: Any = make_model("llama")
    model.resize_token_embeddings(300)
    assert (
        model.model.vocab_size != model.config.vocab_size
    )  # transformers leaves the old one there
    assert_same(ost.adopt(model.eval()), _saved(model, tmp_path), MEASURED[:1])


def test_weights_that_ask_for_gradients_are_multiplied_in_the_same_order(tmp_path: Path) -> None:
    """torch folds a batch into one product, or not, by whether a weight asks for a gradient, also
    under `no_grad`.
    """
    generic_model("falcon_mamba").save_pretrained(tmp_path)
    model = FalconMambaForCausalLM.from_pretrained(tmp_path)
    assert all(weight.requires_grad for weight in model.parameters())
    ost.adopt(model)
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EVERY_TEXT_FAMILY, *(f"generic {kind}" for kind in GENERIC)])
def test_every_family_is_adopted_as_it_is_loaded(name: str, tmp_path: Path) -> None:
    kind = name.split()[-1]
    model = generic_model(kind) if name.startswith("generic") else make_model(kind)
    try:
        loaded = _saved(model, tmp_path)
    except ost.InputError:  # such a model is refused, and so is what is in memory
        with pytest.raises(ost.InputError):
            ost.adopt(model)
        return
    adopted = ost.adopt(model)
    assert describe(adopted).weight_hash == describe(loaded).weight_hash
    assert torch.equal(adopted(torch.tensor([IDS])), loaded(torch.tensor([IDS])))


def test_a_buffer_of_which_no_logit_of_a_few_tokens_speaks_is_held_against_the_configuration() -> (
    None
):
    model: Any = make_model("llama")
    model.model.rotary_emb.original_inv_freq = model.model.rotary_emb.original_inv_freq * 2
    with pytest.raises(ost.InputError, match="original_inv_freq as the configuration says"):
        ost.adopt(model)
