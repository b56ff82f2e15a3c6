"""The generic route: what is found by structure is proven; its derivative is plain autograd's on
Hugging Face's own model.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import ostools as ost
from ostools import hooks
from ostools.measure.passes.last_tokens import Unembedding
from ostools.measure.passes.output import Output
from tests.checkpoints import write_tokenizer
from tests.generic_models import COMMON, GENERIC, generic_model
from tests.sets import quick

IDS = [2, 40, 50, 60, 60, 61, 70, 71]
REFUSED = {
    "nanochat": "one that runs elsewhere too",
    "openai-gpt": "expected a final norm",
    "zamba2": "depends on a token past",
}


def loaded(folder: Path, kind: str, gain: float = 1.0, **options: Any) -> Any:
    """By the generic route, whether or not there is a record; `gain`: of its output layer."""
    module: Any = generic_model(kind)
    module.get_output_embeddings().weight.mul_(gain)
    module.save_pretrained(folder)
    write_tokenizer(folder)
    return ost.load_model(folder, device="cpu", route="generic", **options)


def plain_jacobian(model: PreTrainedModel, blocks: str, norm: str) -> torch.Tensor:
    """d y_n / d v_i^(0) of Hugging Face's own model, by two torch hooks and one backward pass a
    row.
    """
    stream, y, _ = plain_pass(model, blocks, norm)
    return torch.stack(
        [torch.autograd.grad(part, stream, retain_graph=True)[0][0] for part in y[0, -1]], dim=1
    )


def plain_pass(
    model: PreTrainedModel, blocks: str, norm: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """v^(0) as a leaf, y and the logits of Hugging Face's own model, by two torch hooks."""
    noted: dict[str, Any] = {}

    def start(module: Any, args: Any, kwargs: Any) -> Any:
        noted["v"] = (args[0] if args else kwargs["hidden_states"]).detach().requires_grad_(True)
        return (
            ((noted["v"], *args[1:]), kwargs)
            if args
            else (args, {**kwargs, "hidden_states": noted["v"]})
        )

    first = model.get_submodule(f"{blocks}.0").register_forward_pre_hook(start, with_kwargs=True)
    last = model.get_submodule(norm).register_forward_hook(
        lambda module, args, output: noted.__setitem__("y", output)
    )
    logits = model(torch.tensor([IDS]), use_cache=False).logits
    first.remove()
    last.remove()
    return noted["v"], noted["y"], logits


def reference_of(model: Any, kind: str) -> tuple[PreTrainedModel, str, str]:
    """Hugging Face's own model in float64, and the paths of its blocks and its final norm."""
    norm = next(
        path for path, part in model.original_model.named_modules() if part is model.ln_final
    )
    blocks = next(
        path for path, part in model.original_model.named_modules() if part is model.blocks[0]
    )[:-2]
    reference = PreTrainedModel.double(generic_model(kind))
    if hasattr(reference.config, "_experts_implementation"):
        reference.config._experts_implementation = "eager"
    return reference, blocks, norm


@pytest.mark.parametrize(
    "kind", quick(("mamba", "qwen3_next", "granite", "gpt_oss"), "mamba", "qwen3_next")
)
def test_the_jacobian_is_plain_autograd(kind: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, kind, dtype="float64")
    embedded = model.input_to_embed(torch.tensor([IDS]))[0][0].detach()
    expected = plain_jacobian(*reference_of(model, kind))
    torch.testing.assert_close(
        ost.measure.jacobian(model, embedded),
        expected,
        rtol=0,
        atol=1e-6 * float(expected.abs().max()),
    )


@pytest.mark.parametrize("kind", quick(("mamba", "qwen3_next", "granite"), "mamba", "granite"))
def test_attribution_is_plain_autograds_gradient_times_input(kind: str, tmp_path: Path) -> None:
    """And the remainder is what is missing to the logit: with a scale of the logits (Granite), and
    with experts.
    """
    model = loaded(tmp_path, kind, dtype="float64")
    result = ost.attribution(model, ost.Prompt.from_ids(model, IDS), logit=50)
    stream, _, logits = plain_pass(*reference_of(model, kind))
    logit = logits[0, -1, 50]
    parts = (torch.autograd.grad(logit, stream)[0] * stream.detach())[0].sum(-1)
    expected = torch.cat([parts, (logit.detach() - parts.sum())[None]])
    measured = torch.tensor(result.frame["contribution"].to_numpy())
    # Hugging Face's own norms are rounded to float32: so is its logit, at the size of the others.
    torch.testing.assert_close(
        measured, expected, rtol=0, atol=1e-6 * float(logits.detach().abs().max())
    )
    noted = result.provenance.parameters
    share = expected[-1].abs() / (parts.abs().sum() + logit.abs().detach())
    assert (noted["linearisation"], noted["complete"]) == ("full", False)
    assert noted["adds_up_within"] == pytest.approx(float(share), rel=1e-5)
    assert noted["certificate"]["error"] < 1e-5
    assert ("experts" in noted) == (kind == "qwen3_next")
    assert result.frame["part"].iloc[-1] == "remainder"
    assert "remainder" in " ".join(result.findings())


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_without_proof_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ost.InputError, match=REFUSED[kind]):
        loaded(tmp_path, kind)


def test_a_stream_that_is_not_the_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof is the one that sees it: a last block that also reads the embeddings."""
    from transformers.models.olmo.modeling_olmo import OlmoDecoderLayer, OlmoModel

    kept: list[torch.Tensor] = []
    own_block, own_model = OlmoDecoderLayer.forward, OlmoModel.forward

    def block(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept.append(hidden_states)
        output = own_block(self, hidden_states, *args, **kwargs)
        return output if len(kept) < 2 else output + 0.1 * kept[0]

    def model(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept.clear()
        return own_model(self, *args, **kwargs)

    monkeypatch.setattr(OlmoDecoderLayer, "forward", block)
    monkeypatch.setattr(OlmoModel, "forward", model)
    with pytest.raises(ost.InputError, match=r"depends on a token past v\^\(1\)"):
        loaded(tmp_path, "olmo")


def test_what_needs_no_inside_is_measured_and_the_result_says_what_is_missing(
    tmp_path: Path,
) -> None:
    model = loaded(tmp_path, "qwen3_next")
    prompt = ost.Prompt.from_ids(model, IDS)
    sketch = ost.sensitivity(model, prompt, method="sketch", cotangents=32)
    exact = ost.sensitivity(model, prompt)
    assert set(exact.frame["linearisation"]) == {"full"}
    torch.testing.assert_close(
        torch.tensor(sketch.frame["frobenius_norm"]),
        torch.tensor(exact.frame["frobenius_norm"]),
        rtol=1e-4,
        atol=0,
    )
    notes = exact.provenance.parameters
    assert notes["no_softmax"].startswith("linear_attention: the paper's statements")
    assert notes["runs"]["full"]["experts"]["nearest"]["block"] in (0, 1)
    sentences = " ".join(exact.findings())
    assert "(frozen, frozen-attention, frozen-norm, detached) are missing" in sentences
    dtypes = ["float32", "bfloat16-weights"]
    collapse = ost.collapse(model, "figure-5a", lengths=[4], dtypes=dtypes)
    assert set(collapse.frame["dtype"]) == set(dtypes)
    assert "attention" not in set(collapse.frame["site"])
    assert len(ost.evaluate(model, "copy-last", lengths=[4]).frame)


def test_a_choice_of_experts_past_the_stream_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof holds the choices of its probe, and sees a router that reads more than the stream."""
    from transformers.models.granitemoe.modeling_granitemoe import (
        GraniteMoeModel,
        GraniteMoeTopKRouter,
    )

    own_router, own_model, tokens = GraniteMoeTopKRouter.forward, GraniteMoeModel.forward, []

    def model(self: Any, input_ids: Any = None, **kwargs: Any) -> Any:
        tokens[:] = [input_ids]
        return own_model(self, input_ids, **kwargs)

    def router(self: Any, hidden_states: torch.Tensor, *args: Any) -> Any:
        noise = (tokens[0].reshape(-1, 1) % 7).to(hidden_states)
        return own_router(self, hidden_states + noise.reshape(*hidden_states.shape[:-1], 1), *args)

    monkeypatch.setattr(GraniteMoeTopKRouter, "forward", router)
    monkeypatch.setattr(GraniteMoeModel, "forward", model)
    with pytest.raises(ost.InputError, match="a choice of experts depends on a token past it"):
        loaded(tmp_path, "granitemoe")


@pytest.mark.parametrize(
    ("kind", "null"),
    [("mamba", "initialised"), ("qwen3_next", "shuffled"), ("rwkv", "initialised")],
)
def test_an_untrained_model_goes_the_same_route(kind: str, null: Any, tmp_path: Path) -> None:
    model = loaded(tmp_path, kind)
    untrained = ost.models.untrained_model(model, null)
    assert untrained.cfg.architecture == model.cfg.architecture
    ids = torch.tensor([IDS])
    assert not torch.equal(untrained(ids), model(ids))


def test_what_needs_the_inside_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, "granite")
    prompt = ost.Prompt.from_ids(model, IDS)
    detached = (
        partial(ost.attribution, linearisation="detached"),
        partial(ost.sensitivity, linearisations=["detached"]),
    )
    for measure in (*detached, ost.bounds, ost.measure.hops):
        with pytest.raises(ValueError, match=r"inside|activations"):
            measure(model, prompt)


@pytest.mark.parametrize("kind", ["granite", "granitemoe", "cohere", "recurrent_gemma"])
def test_the_last_y_unembeds_to_the_logits_of_the_model(kind: str, tmp_path: Path) -> None:
    """A scale of the logits is applied once, whichever part of the route knows of it; so is a
    soft-cap.
    """
    model = loaded(tmp_path, kind)
    with torch.no_grad(), hooks.capture(model, "final_norm") as record:
        logits = model(torch.tensor([IDS]))[0, -1]
    y = record["final_norm"]
    torch.testing.assert_close(
        Unembedding.of(model)(y[0, -1:])[0], logits, rtol=0, atol=1e-5 * float(logits.abs().max())
    )
    row = Output.of(model, [50, 60]).row
    if kind.startswith("granite"):
        assert float(row @ y[0, -1]) == pytest.approx(float(logits[50] - logits[60]), rel=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16-eager", "float16-eager", "float32"])
@pytest.mark.parametrize(
    ("kind", "gain"), [("falcon_h1", 1), ("granitemoe", 40), ("xlstm", 100), ("vaultgemma", 100)]
)
def test_the_scale_of_the_logits_has_all_its_digits_in_every_dtype(
    kind: str, gain: float, dtype: str, tmp_path: Path
) -> None:
    """With logits that their soft-cap bends as much as it can, too."""
    model = loaded(tmp_path, kind, gain, dtype=dtype)
    scale = {"falcon_h1": 0.5, "granitemoe": 0.25}.get(kind, 1.0)
    weight = model.original_model.get_output_embeddings().weight
    assert torch.equal(model.unembed.W_U, weight.T * scale)
    prompt = ost.Prompt.from_ids(model, IDS)
    assert ost.sensitivity(model, prompt, logit=50).frame["frobenius_norm"].iloc[-1] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_number_that_its_configuration_does_not_have_is_the_scale_too(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.cohere.modeling_cohere import CohereForCausalLM

    own = CohereForCausalLM.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output: Any = own(self, *args, **kwargs)
        output.logits = output.logits * 0.7
        return output

    monkeypatch.setattr(CohereForCausalLM, "forward", forward)
    model = loaded(tmp_path, "cohere", dtype=dtype)
    weight = model.original_model.get_output_embeddings().weight.double()
    torch.testing.assert_close(
        model.unembed.W_U.double(), weight.T * 0.175, rtol=torch.finfo(model.cfg.dtype).eps, atol=0
    )
    assert model.unembed._scale == pytest.approx(0.175, rel=1e-12)


def test_logits_that_are_bent_by_no_known_soft_cap_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By less than what bfloat16 rounds."""
    from transformers.models.cohere.modeling_cohere import CohereForCausalLM

    own = CohereForCausalLM.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output: Any = own(self, *args, **kwargs)
        cap = 5 * float(output.logits.abs().max())
        output.logits = cap * torch.tanh(output.logits / cap)
        return output

    monkeypatch.setattr(CohereForCausalLM, "forward", forward)
    with pytest.raises(ost.InputError, match="in its output layer alone"):
        loaded(tmp_path, "cohere", dtype="bfloat16")


def test_a_projection_between_y_and_the_output_layer_is_refused() -> None:
    config = AutoConfig.for_model("opt", **{**COMMON, **GENERIC["opt"], "word_embed_proj_dim": 16})
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ost.InputError, match="its output layer's of y, times a number: RuntimeErr"):
        ost.adopt(model)


def test_a_model_in_memory_goes_this_route_too() -> None:
    module = generic_model("mamba")
    assert torch.equal(
        ost.adopt(module)(torch.tensor([IDS])),
        module(torch.tensor([IDS]), use_cache=False).logits,
    )


def test_a_table_of_positions_that_a_pass_made_longer_is_no_other_model(tmp_path: Path) -> None:
    """XGLM makes one beyond its context; the rows that were there are the same."""
    model = loaded(tmp_path, "xglm")
    before, ids = ost.models.describe(model), torch.arange(6, 12)[None]
    logits = model(ids)
    table = dict(model.original_model.named_buffers())
    name = next(name for name in table if name.endswith("embed_positions.weights"))
    longest = len(table[name])
    model(torch.arange(longest + 2)[None] % 200 + 6)
    assert len(dict(model.original_model.named_buffers())[name]) > longest
    assert ost.models.describe(model) == before
    assert torch.equal(model(ids), logits)
