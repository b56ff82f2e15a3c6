"""Sensitivity along a chain of thought: the numbers are those of the whole sequence, and every
token has one part.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.answers.answers import Answer
from ostools.measure.task_prompt import render_prompt
from ostools.models import Prompt, encode
from ostools.paper.chain_of_thought import (
    BY_MODEL,
    EXAMPLES,
    FRAME,
    GIVEN_TEXT,
    ITEMS,
    LINE,
    LINE_APPENDED,
    PARTS,
    REASONING,
    WORDS,
    ReasonedPrompt,
    chain_of_thought,
    with_reasoning,
)
from ostools.tasks import task
from tests.checkpoints import tiny_model

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 2048,
}
MATHS = "The final answer to your maths question is:"
OURS = "We count.\n1 + 1 + 1\nThat is 3."
ZERO = "count-ones:mode=cot-zero-shot"


@pytest.fixture(scope="module")
def tiny() -> TransformerBridge:
    return tiny_model("llama", seed=3, **SMALL)


def says(monkeypatch: pytest.MonkeyPatch, text: str, ended: str = "eos") -> None:
    """The model writes this, whatever it is asked."""

    def said(model: Any, prompts: Any, **options: Any) -> list[Answer]:
        before = prompts[0].ids.tolist()
        whole = model.tokenizer(
            model.tokenizer.decode(before) + text, add_special_tokens=False
        ).input_ids
        ids = [*whole[len(before) :], *([model.tokenizer.eos_token_id] if ended == "eos" else [])]
        assert whole[: len(before)] == before
        return [Answer(tuple(ids), text, ended)]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(import_module("ostools.paper.chain_of_thought"), "answers", said)


def joined(found: ReasonedPrompt, part: str) -> str:
    return "".join(
        token for token, own in zip(found.prompt.tokens, found.parts, strict=True) if own == part
    )


# --- the sequence


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("spec", [ZERO, "sum-ones:mode=cot-few-shot"])
def test_every_token_has_its_part(tiny: TransformerBridge, spec: str, chat: bool) -> None:
    form = task(spec)
    posed = render_prompt(tiny, form, 5, chat=chat)
    found = with_reasoning(tiny, posed, OURS, 9)
    assert found.prompt.ids.tolist()[: posed.tokens] == posed.prompt.ids.tolist()
    assert joined(found, ITEMS).replace(" ", "") == "1" * 5
    assert joined(found, REASONING) == OURS
    assert joined(found, LINE).strip() == MATHS
    turns = "<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\n" if chat else ""
    assert joined(found, FRAME) == "<bos>" + turns
    before, sequence, after = form.parts(form.items(5))
    examples = joined(found, EXAMPLES)
    assert bool(examples) is spec.endswith("few-shot")
    assert examples.strip() in before + after
    others = joined(found, WORDS) + examples + joined(found, ITEMS)
    assert sorted(others.replace(" ", "")) == sorted((before + sequence + after).replace(" ", ""))
    assert set(found.parts) <= set(PARTS)


@pytest.mark.parametrize(
    ("text", "reasoning", "source"),
    [
        (f"I see ones.\nSo 4.\n{MATHS} 4", "I see ones.\nSo 4.", BY_MODEL),
        (f"So 4. {MATHS} 4\nI hope this helps!\nNow {MATHS} 9", "So 4.", BY_MODEL),
        (f"I write '{MATHS} xxxx'.\n{MATHS} 4", f"I write '{MATHS} xxxx'.", BY_MODEL),
        (f"{MATHS} 4", "", BY_MODEL),
        ("I see ones.\nSo 4.", "I see ones.\nSo 4.", LINE_APPENDED),
        (f"So 4.\n{MATHS}", f"So 4.\n{MATHS}", LINE_APPENDED),
        ("", "", LINE_APPENDED),
    ],
)
def test_the_models_own_tokens_are_kept_up_to_the_answer(
    tiny: TransformerBridge, monkeypatch: pytest.MonkeyPatch, text: str, reasoning: str, source: str
) -> None:
    says(monkeypatch, "\n" + text)
    posed = render_prompt(tiny, task(ZERO), 5, chat=False)
    if source == LINE_APPENDED and MATHS in text:
        monkeypatch.undo()
        says(monkeypatch, "\nSo 4.", "length")
        text = reasoning = "So 4."
    found = with_reasoning(tiny, posed, None, 60)
    assert (found.reasoning, found.source) == (reasoning, source)
    assert joined(found, REASONING).strip() == reasoning
    assert joined(found, LINE).strip() == MATHS
    if source == BY_MODEL:
        own = encode(tiny, posed.text + "\n" + text).ids.tolist()
        assert own[: len(found.prompt.ids)] == found.prompt.ids.tolist()
        assert tiny.tokenizer.decode(own[len(found.prompt.ids)]).strip() == "4"  # pyright: ignore[reportOptionalMemberAccess]


def test_a_bare_answer_is_no_reasoning(
    tiny: TransformerBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "\n11111")
    found = with_reasoning(tiny, render_prompt(tiny, task("copy"), 5, chat=False), None, 60)
    assert (found.reasoning, found.source, joined(found, LINE)) == ("", GIVEN_TEXT, "\n")


# --- the numbers


def test_the_norms_are_those_of_the_sequence_and_the_shares_are_of_one(
    tiny: TransformerBridge,
) -> None:
    found = chain_of_thought(
        tiny, ZERO, 4, reasoning=OURS, chat=False, linearisations=["full", "frozen"]
    )
    frame: Any = found.frame
    ids = found.provenance.token_ids
    assert ids is not None
    alone: Any = ost.sensitivity(
        tiny, Prompt.from_ids(tiny, ids), linearisations=["full", "frozen"]
    ).frame
    pd.testing.assert_frame_equal(frame[list(alone.columns)], alone)
    summary: Any = found.summary
    for (linearisation, norm), rows in summary.groupby(["linearisation", "norm"]):
        here = frame[frame["linearisation"] == linearisation]
        values = here[f"{norm}_norm"]
        assert rows["share"].sum() == pytest.approx(1, abs=1e-12)
        assert rows["tokens"].sum() == len(ids)
        assert list(rows["part"]) == [FRAME, WORDS, ITEMS, REASONING, LINE]
        for row in rows.itertuples():
            own = values[here["part"] == row.part]
            expected = own.sum(), own.mean(), own.sum() / values.sum()
            assert (row.total, row.mean, row.share) == pytest.approx(expected, rel=1e-12)


def test_the_answer_is_the_next_token(embedded: TransformerBridge) -> None:
    found = chain_of_thought(embedded, "copy-last", 6, reasoning="")
    parameters = found.provenance.parameters
    ids = [*(found.provenance.token_ids or ())]
    logits: Any = embedded(Prompt.from_ids(embedded, ids).ids[None])
    chosen = embedded.tokenizer.decode(int(logits[0, -1].argmax()))  # pyright: ignore[reportOptionalMemberAccess]
    assert parameters["answer_token"] == chosen
    assert parameters["right_token"] == "0"
    assert parameters["first_token_right"] is (chosen == "0")
    assert parameters["reasoning_source"] == GIVEN_TEXT
    assert set(found.summary["part"]) == {FRAME, WORDS, ITEMS, LINE}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"reasoning": f"So 3. {MATHS} 3"}, "leave that line out"),
        ({"length": 0}, "length"),
        ({"seed": 1}, "draws nothing"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"reasoning": "1" * 3000}, "context"),
        ({"linearisations": ["ful"]}, "did you mean 'full'"),
    ],
)
def test_refusals(tiny: TransformerBridge, arguments: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"task": ZERO, "length": 4, "reasoning": "", "chat": False} | arguments
    with pytest.raises(InputError, match=words):
        chain_of_thought(tiny, **asked)
