"""log p(line | prompt): against a loop token by token, against what is drawn, and how tokenizers
cut a line.
"""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import ostools as ost
from ostools import hooks
from ostools.measure.answers.answers import answer_log_probability, answers
from ostools.measure.position import answer_text, line_ids
from tests.checkpoints import TEXT_FAMILIES, Family, refused, tiny_model
from tests.measure.steps import step_logits
from tests.sets import quick

TEXTS = (
    "How many ones? 1111",
    "How many ones? 11011011",
    "How many?",
    "the in he a the in he a the in",
)
LINES = ("\nfour: 4", "\nThe answer is 1", " 7", "\n12345")


def one_by_one(model, ids: list[int], line: list[int], ends: set[int]) -> float:
    """Every token of the line behind all before it, and then an end."""
    p = torch.softmax(step_logits(model, ids, line).double(), dim=-1)
    return sum(math.log(float(p[at, token])) for at, token in enumerate(line)) + math.log(
        float(p[-1, sorted(ends)].sum())
    )


def ends_of(model) -> set[int]:
    """Ends of text, and every token whose text is a line's end behind blanks."""
    ends = model.original_model.generation_config.eos_token_id
    spelled = {index: model.tokenizer.decode([index]) for index in range(int(model.W_E.shape[0]))}
    lines = {index for index, text in spelled.items() if text.lstrip(" ").startswith("\n")}
    return lines | set(ends if isinstance(ends, list) else [ends]) | {model.tokenizer.eos_token_id}


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.float64], torch.float32))
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_equals_a_loop_token_by_token(family: Family, dtype: torch.dtype) -> None:
    model = tiny_model(family, seed=3, scale=1.5, dtype=dtype)
    found = answer_log_probability(model, TEXTS, LINES)
    for text, line, log_p in zip(TEXTS, LINES, found, strict=True):
        ids = ost.encode(model, text).ids.tolist()
        both = ost.encode(model, text + line).ids.tolist()
        assert both[: len(ids)] == ids
        expected = one_by_one(model, ids, both[len(ids) :], ends_of(model))
        assert log_p == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-10)


def test_the_batch_changes_nothing() -> None:
    model = tiny_model("gemma2", seed=5, scale=1.5)
    together = answer_log_probability(model, TEXTS, LINES)
    for text, line, log_p in zip(TEXTS, LINES, together, strict=True):
        assert answer_log_probability(model, [text], [line])[0] == pytest.approx(log_p, rel=1e-5)


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: nullcontext(),
        lambda model: hooks.mask_scores(model, lambda query, key: query - key < 3),
        # Without a cache.
        lambda model: hooks.replace_pattern(model, lambda pattern, *_: pattern),
    ],
)
def test_a_line_is_scored_under_the_edit_and_leaves_the_answer_as_it_is(edit: Any) -> None:
    model = tiny_model("gemma2", seed=5, scale=1.5, dtype=torch.float64)
    with edit(model):
        alone = answers(model, TEXTS, max_new_tokens=6)
        scored = answers(model, TEXTS, max_new_tokens=6, lines=LINES)
        assert [answer.ids for answer in scored] == [answer.ids for answer in alone]
        for text, line, answer in zip(TEXTS, LINES, scored, strict=True):
            prompt = ost.encode(model, text)
            ids = list(line_ids(model, prompt, line))
            expected = one_by_one(model, prompt.ids.tolist(), ids, ends_of(model))
            assert answer.log_probability == pytest.approx(expected, rel=1e-10)


def joining_tokenizer(joined: tuple[str, str] = (".", "\n")) -> PreTrainedTokenizerFast:
    """One token for a full stop and the line's end behind it, as some tokenizers have."""
    words = ["<eos>", ".", "\n", "".join(joined), "a", "b", "1"]
    made = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[joined])
    )
    made.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")


def test_a_tokenizer_that_joins_the_border_scores_the_lines_own_tokens() -> None:
    model = tiny_model("llama", seed=5, fresh=True)
    model.tokenizer = joining_tokenizer()
    prompt = ost.encode(model, "a.")
    assert line_ids(model, ost.encode(model, "a"), "\n1") == (2, 6)
    assert line_ids(model, prompt, "\n1") == (2, 6)
    assert line_ids(model, ost.Prompt.from_ids(model, prompt.ids), "\n1") == (2, 6)
    found = answer_log_probability(model, [prompt], ["\n1"])
    ends = {2} | ends_of(model) - {3}
    assert found[0] == pytest.approx(one_by_one(model, prompt.ids.tolist(), [2, 6], ends), rel=1e-5)


def test_in_a_chat_the_line_is_open_already() -> None:
    model = tiny_model("gemma")
    chatty, plain = (
        ost.measure.render_prompt(model, ost.tasks.task("copy-last"), 3, chat=chat)
        for chat in (True, False)
    )
    assert answer_text(chatty) == chatty.line
    assert answer_text(plain) == "\n" + plain.line
    found = line_ids(model, chatty.prompt, answer_text(chatty))
    assert model.tokenizer.decode(list(found)) == chatty.line


@pytest.mark.parametrize(
    ("prompts", "lines", "words"),
    [
        (["1"], [""], "it is empty"),
        (
            ["1" * 200],
            ["2" * 100],
            "a prompt and its answer of 301 tokens do not fit the model's context of 256",
        ),
    ],
)
def test_refuses(prompts: list[str], lines: list[str], words: str) -> None:
    refused(words, answer_log_probability, tiny_model("gemma"), prompts, lines)


def test_refuses_what_has_no_tokens_of_its_own_and_what_cannot_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama", seed=5, fresh=True)
    refused("holds a control token", line_ids, model, ost.Prompt.from_ids(model, [7]), "<eos>")
    model.tokenizer = joining_tokenizer(("\n", "b"))
    with pytest.raises(ost.InputError, match="joins 'b1' with the text before it"):
        line_ids(model, ost.Prompt.from_ids(model, [4]), "b1")
    model.tokenizer.eos_token, prompt = None, ost.Prompt.from_ids(model, [4])
    monkeypatch.setattr(
        model.tokenizer,
        "convert_ids_to_tokens",
        lambda ids: ["a"] * len(ids) if isinstance(ids, list) else prompt.tokens[0],
    )
    own: Any = model.original_model
    own.generation_config.eos_token_id = None
    with pytest.raises(ost.InputError, match="a token that ends a text or a line, found none"):
        answer_log_probability(model, [prompt], ["1"])


def test_where_the_length_of_a_pass_turns_positions_a_line_is_scored_by_itself() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24}
    factors = {"short_factor": [1.0] * 4, "long_factor": [8.0, 6.0, 4.0, 3.0]}
    sizes = {"original_max_position_embeddings": 24, "max_position_embeddings": 96}
    scaled: dict[str, Any] = {"rope_parameters": rope | factors, **sizes}
    model = tiny_model("phi3", seed=3, scale=1.5, dtype=torch.float64, fresh=True, **scaled)
    prompts, lines = ["How many ones? 1111"] * 2, [" 7", "\nThe answer is 1 and more"]
    alone = [answer_log_probability(model, prompts[:1], [line])[0] for line in lines]
    assert answer_log_probability(model, prompts, lines) == pytest.approx(alone, rel=1e-12)
