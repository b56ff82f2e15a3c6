"""Every quantity on real pretrained models, by an independent route: transformers alone, loops, and
plain autograd.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools.measure.answers.answers import answers
from ostools.models.precision.scores import attention_of, reference_attention
from tests.real.conftest import Real

pytestmark = pytest.mark.slow
WITHIN = 1e-4
"""The plain model is in float64, but transformers' norms go through float32 there."""
TEXT = "The capital of France is Paris. The capital of Italy is"


def test_logits_are_those_of_transformers(real: Real) -> None:
    ids = ost.encode(real.model, TEXT).ids[None]
    assert torch.equal(real.model(ids), real.plain(torch.float32)(ids, use_cache=False).logits)


def test_attention_is_that_of_transformers(real: Real) -> None:
    ids = ost.encode(real.model, TEXT).ids[None]
    theirs = real.plain(torch.float32)(ids, use_cache=False, output_attentions=True).attentions
    assert torch.equal(
        ost.attention(real.model, TEXT).last.float(),
        torch.stack([part[0, :, -1] for part in theirs]),
    )


def test_greedy_answers_are_those_of_generate(real: Real) -> None:
    ids = ost.encode(real.model, TEXT).ids[None]
    (found,) = answers(real.model, [TEXT], max_new_tokens=6)
    options: dict[str, Any] = {
        "max_new_tokens": 6,
        "do_sample": False,
        "attention_mask": torch.ones_like(ids),
    }
    written = real.plain(torch.float32).generate(ids, **options)[0, ids.shape[1] :].tolist()
    assert list(found.ids) == written[: len(found.ids)]
    assert "Rome" in real.model.tokenizer.decode(written)


def test_the_bridges_own_methods_are_transformers_on_the_tokenizers_own_ids(real: Real) -> None:
    model, plain, tokenizer = real.model, real.plain(torch.float32), real.model.tokenizer
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
    for text in (TEXT, "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e\n", " 1 1"):
        ids = tokenizer(text, return_tensors="pt").input_ids
        assert (
            model.to_tokens(text).tolist() == ids.tolist() == [ost.encode(model, text).ids.tolist()]
        )
        assert model.to_str_tokens(text) == [tokenizer.decode([index]) for index in ids[0].tolist()]
        written = plain.generate(ids, attention_mask=torch.ones_like(ids), **options)[0]
        assert model.generate(text, verbose=False, **options) == tokenizer.decode(
            written, skip_special_tokens=True
        )
        for bos in (True, False):
            ours = ost.encode(model, text, bos=bos).ids.tolist()
            assert model.to_tokens(text, prepend_bos=bos).tolist() == [ours]


@pytest.mark.parametrize("eager", [False, True])
def test_y_in_bfloat16_is_that_of_transformers(real: Real, eager: bool) -> None:
    """To the bit: with its eager attention, and with that in float32 between queries and what
    attention gives.
    """
    ids, plain = ost.encode(real.model, TEXT).ids, real.plain(torch.bfloat16)
    with attention_of(plain, reference_attention(plain, eager)):
        expected = _last(plain, ids)
    with torch.no_grad():
        _, cache = ost.models.view_in(real.model, torch.bfloat16, eager=eager).run_with_cache(
            ids[None]
        )
    assert torch.equal(cache["ln_final.hook_out"][0, -1], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16-eager"])
def test_distances_are_those_of_a_loop_of_two_passes(real: Real, dtype: str) -> None:
    """In eager bfloat16 of the same y, to the bit: only the distance's own sum is rounded. In
    float32 sums go in any order.
    """
    lengths = [1, 5, 12]
    found = ost.collapse(real.model, "figure-5a", lengths=lengths, dtypes=[dtype])
    plain, task = (
        real.plain(getattr(torch, dtype.removesuffix("-eager"))),
        ost.tasks.FIGURE_5["figure-5a"](),
    )
    for length in lengths:
        ids = ost.encode(real.model, task.text(length)).ids
        y, y_more = (_last(plain, part) for part in (ids, torch.cat([ids, ids[-1:]])))
        rows: Any = found.frame.query(
            "length == @length and site == 'y' and norm == 'l2' and per == 'vector'"
        )
        expected = float((y.double() - y_more.double()).norm())
        within = 1e-6 * float(y.norm()) if dtype == "float32" else 1e-6 * expected
        assert rows["mean"].tolist() == pytest.approx([expected], abs=within)


def _last(plain: Any, ids: Tensor) -> Tensor:
    """y of the last token, [d_model], in one pass of transformers alone."""
    with torch.no_grad():
        return plain.model(ids[None], use_cache=False).last_hidden_state[0, -1]


def test_norms_are_those_of_plain_autograd_and_no_bound_is_below(real: Real) -> None:
    """Of the logit of the likeliest token, in float64: one row of the Jacobian behind the output
    layer, in every layer.
    """
    ids = ost.encode(real.model, TEXT).ids[:6]
    prompt = ost.Prompt.from_ids(real.model, ids.tolist())
    logit = int(real.model(ids[None])[0, -1].argmax())
    measured = ost.sensitivity(real.model, prompt, logit=logit)
    plain = real.plain(torch.float64)
    embedded = plain.get_input_embeddings()(ids)[None].requires_grad_(True)
    plain(inputs_embeds=embedded, use_cache=False).logits[0, -1, logit].backward()
    full: Any = measured.frame.query("linearisation == 'full'")
    assert full["frobenius_norm"].tolist() == pytest.approx(
        embedded.grad[0].norm(dim=-1).tolist(), rel=WITHIN
    )
    summary: Any = ost.compare(measured, ost.bounds(real.model, prompt, variants="local")).summary
    assert summary["holds"].tolist() == [True]


def test_a_report_names_the_file_and_decides_what_the_measurements_decide(
    real: Real, tmp_path: Path
) -> None:
    lengths, sections = [1, 2, 4, 8, 16, 32], ["collapse"]
    out = ost.report(real.model, lengths=lengths, sections=sections, out=tmp_path / "real.html")
    page = out.read_text("utf-8")
    title, state = {
        "smollm2-135m-instruct": ("SmolLM2 135M Instruct, Q4_1", "not found"),
        "gemma-3-270m": ("Gemma 3 270M, Q4_K_M", "found"),
    }[real.name]
    assert ost.models.describe(real.model).title == title
    assert f"<h1>{title}</h1>" in page
    # Gemma's pair of ones is hidden until the prompt outgrows the window; of six lengths alone no
    # range could be seen.
    states = re.findall(r'<dt><a href="#collapse">[^<]*</a></dt><dd class="\w+">([^<]*)</dd>', page)
    assert states == [state]


def test_digits_are_tokens_of_their_own_and_blanks_before_them_stay_together(real: Real) -> None:
    """As both models were trained; transformers' reader alone does not know how SmolLM2's tokenizer
    cuts.
    """
    blank, lines = {
        "smollm2-135m-instruct": ("\u0120", "\u010a\u010a"),
        "gemma-3-270m": ("\u2581", "\n\n"),
    }[real.name]
    tokens = real.model.tokenizer.tokenize("a  12\n\n3 b")
    assert tokens == ["a", blank * 2, "1", "2", lines, "3", f"{blank}b"]
