"""What a model answers: Hugging Face's own greedy decoding, the whole text at every step, and
answers of known texts.
"""

from contextlib import ExitStack
from typing import Any

import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.measure.answers.answers import Answer, answers
from tests.checkpoints import TEXT_FAMILIES, TWO_FAMILIES, Family, make_model, tiny_model
from tests.measure.steps import step_logits, without_ends

TEXTS = ("How many ones? 1111", "How many ones? 1101", "the in he a the")


def is_greedy(model, text: str, answer: Answer) -> bool:
    """Whether every token of an answer is the most likely one behind the whole text before it."""
    logits = step_logits(model, ost.encode(model, text).ids.tolist(), answer.ids[:-1])
    return tuple(logits.argmax(-1).tolist()) == answer.ids


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_equals_hugging_faces_own_greedy_decoding(family: Family) -> None:
    model = tiny_model(family, seed=3, scale=1.5, fresh=True)
    without_ends(model)
    own = make_model(family, seed=3, scale=1.5)
    found = answers(model, TEXTS, max_new_tokens=8)
    for text, answer in zip(TEXTS, found, strict=True):
        ids = ost.encode(model, text).ids[None]
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        written: Any = own.generate(ids, attention_mask=torch.ones_like(ids), **options)  # pyright: ignore[reportCallIssue]
        assert (answer.ids, answer.ended) == (tuple(written[0, ids.shape[1] :].tolist()), "length")
    assert len({answer.ids for answer in found}) > 1


def shapes_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and tokens of each pass that comes."""
    shapes, forward = [], model.original_model.forward

    def watched(*arguments, **options):
        shapes.append(tuple((arguments[0] if arguments else options["input_ids"]).shape))
        return forward(*arguments, **options)

    monkeypatch.setattr(model.original_model, "forward", watched)
    return shapes


def test_with_a_batch_of_one_each_prompt_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", seed=3, scale=1.5, dtype=torch.bfloat16, fresh=True)
    shapes = shapes_read(model, monkeypatch)
    answers(model, TEXTS[:2], max_new_tokens=2, batch_size=1)
    assert {rows for rows, _ in shapes} == {1}
    answers(model, TEXTS[:2], max_new_tokens=2)
    assert max(rows for rows, _ in shapes) == 2


def uniform(
    pattern: torch.Tensor, layer: int
) -> torch.Tensor:  # of one query it would see the first key alone
    causal = torch.ones_like(pattern).tril()
    return causal / causal.sum(-1, keepdim=True)


def masked_and_ablated(model) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(hooks.mask_scores(model, lambda query, key: (query - key < 3) | (key == 0)))
    stack.enter_context(hooks.ablate_heads(model, [(0, 1)]))
    return stack


@pytest.mark.parametrize(
    ("family", "edit"),
    [
        *((family, masked_and_ablated) for family in TWO_FAMILIES),
        ("llama", lambda model: hooks.replace_pattern(model, uniform)),
    ],
)
def test_edits_act_as_on_the_whole_text(family: Family, edit: Any) -> None:
    model = tiny_model(family, seed=7, scale=1.5, fresh=True)
    without_ends(model)
    plain = answers(model, TEXTS, max_new_tokens=8)
    with edit(model):
        edited = answers(model, TEXTS, max_new_tokens=8)
        assert all(
            is_greedy(model, text, answer) for text, answer in zip(TEXTS, edited, strict=True)
        )
    assert edited != plain


def test_a_hook_that_nobody_knows_reads_the_whole_text_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("gemma", seed=1, fresh=True)
    without_ends(model)
    length, shapes = len(ost.encode(model, TEXTS[0]).ids), shapes_read(model, monkeypatch)
    answers(model, TEXTS[:1], max_new_tokens=4)
    assert [tokens for _, tokens in shapes] == [length, 1, 1, 1]
    shapes.clear()

    def last_position(
        tensor, hook
    ):  # at every step another one: through a cache, older ones would stay changed
        out = tensor.clone()
        out[:, -1] += 0.5
        return out

    model.blocks[0].hook_resid_pre.add_hook(last_position)
    found = answers(model, TEXTS[:1], max_new_tokens=4)
    assert [tokens for _, tokens in shapes] == [length, length + 1, length + 2, length + 3]
    assert is_greedy(model, TEXTS[0], found[0])


def test_answers_end_at_their_own_stop_and_keep_all_that_was_written(embedded) -> None:
    prompt = ost.tasks.AppendixTask("count-ones").prompt(12)
    (whole,) = answers(embedded, [prompt], max_new_tokens=24)
    stops = [lambda text: " maths" in text, lambda text: False]
    cut, other = answers(embedded, [prompt] * 2, max_new_tokens=24, stops=stops)
    assert (cut.text, cut.ended) == ("\nThe final answer to your maths", "stop")
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert other == whole
    (short,) = answers(embedded, [prompt], max_new_tokens=3)
    assert (short.ids, short.ended) == (whole.ids[:3], "length")
    assert whole.ids[-1] == embedded.tokenizer.eos_token_id


def test_the_answers_of_one_batch_are_told_as_they_end() -> None:
    model = tiny_model("llama", seed=3, scale=1.5, fresh=True)
    without_ends(model)
    told: list[tuple[int, int]] = []
    stops = [lambda text, least=least: len(text) >= least for least in (1, 9, 99)]
    answers(model, TEXTS, max_new_tokens=30, stops=stops, progress=lambda *now: told.append(now))
    assert told == [(1, 3), (2, 3), (3, 3)]
