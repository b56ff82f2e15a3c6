"""Where a task's prompt is read: against plain transformers, whatever a mitigation made of the
prompt; and what is refused.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import mitigations
from ostools.measure import position as position_module
from ostools.measure.answers.prefilled import prefilled_prompts
from ostools.measure.collapse.prompt_sets import as_pairs
from ostools.measure.collapse.result import next_tokens
from ostools.measure.position import POSITIONS, Position, read_at
from ostools.measure.task_prompt import item_positions, render_prompt
from ostools.models.tokenizer_calls import token_text
from ostools.results import frame_of
from ostools.tasks import AppendixTask, PairsOfIds, questions, task
from tests.checkpoints import refused, tiny_model
from tests.measure.answers.test_probability import joining_tokenizer
from tests.models.chat.templates import TEMPLATES, with_template

COUNT = AppendixTask("count-ones")
LINE = "The final answer to your maths question is: "
SOME: dict[str, Any] = {"lengths": [2, 5], "dtypes": ["float32"]}


@pytest.fixture
def model() -> TransformerBridge:
    return tiny_model("llama", seed=1, scale=1.5, context=512)


def in_template(model: TransformerBridge, text: str) -> str:
    tokenizer: Any = model.tokenizer
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )


def own_y(model: TransformerBridge, text: str) -> tuple[torch.Tensor, int]:
    """The last state that plain transformers computes for a text, and the first token that it
    generates after it.
    """
    theirs: Any = model.original_model
    ids = torch.tensor(
        [model.tokenizer(text, add_special_tokens=not text.startswith("<bos>")).input_ids]
    )  # pyright: ignore
    y = theirs(ids, output_hidden_states=True).hidden_states[-1][0, -1].double()
    generated = theirs.generate(ids, max_new_tokens=1, do_sample=False)
    return y, int(generated[0, -1])


def texts_at(model: TransformerBridge, n: int) -> dict[str, str]:
    """What stands before the next token at each position, put together by hand."""
    whole = in_template(model, COUNT.prompt(n))
    return {
        "answer": whole + LINE,
        "prompt-end": whole,
        "last-item": whole[: whole.rindex("1" * n) + n],
    }


@pytest.mark.parametrize("position", POSITIONS)
def test_y_and_the_next_token_are_those_of_plain_transformers(
    model: TransformerBridge, position: Position
) -> None:
    found = ost.collapse(model, COUNT, position=position, **SOME)
    rows = (
        frame_of(found)
        .query("site == 'y' and per == 'vector' and norm == 'l2'")
        .set_index("length")["mean"]
    )
    predicted = {n: token for n, _, token in next_tokens(found)}
    for n in SOME["lengths"]:
        (y, token), (other, _) = (
            own_y(model, texts_at(model, count)[position]) for count in (n, n + 1)
        )
        assert rows[n] == pytest.approx(float((y - other).norm()), rel=1e-4)
        assert predicted[n] == token_text(model.tokenizer, token)
    assert found.provenance.parameters["read_at"]["position"] == position


@pytest.mark.parametrize("position", POSITIONS)
def test_every_measurement_reads_the_same_token(
    model: TransformerBridge, position: Position
) -> None:
    """A task's y and next token are one thing: of collapse, a probe, attention, sensitivity and a
    study.
    """
    asked: dict[str, Any] = {"position": position}
    form = "count-ones-bernoulli"
    expected = read_at(model, render_prompt(model, task(form), 5), position)
    (question,) = questions(form, lengths=[5])
    sensitivity = ost.sensitivity(model, question, linearisations="full", method="sketch", **asked)
    attention = ost.attention(model, question, **asked)
    collapse = ost.collapse(model, form, lengths=[5], dtypes=["float32"], **asked)
    for result in (sensitivity, attention):
        assert result.provenance.token_ids == expected.ids
    said = {
        name: result.provenance.parameters["read_at"]
        for name, result in (("s", sensitivity), ("a", attention))
    }
    said["c"] = collapse.provenance.parameters["read_at"]
    assert said["s"] == said["a"] == said["c"]
    tokens = {
        tuple(result.provenance.parameters["next_tokens"]) for result in (sensitivity, attention)
    }
    assert tokens == {tuple(next_tokens(collapse))}


def test_the_begun_line_is_no_text_of_the_users_and_no_item(model: TransformerBridge) -> None:
    read = read_at(model, render_prompt(model, COUNT, 5))
    prompt = read.prompt(model)
    assert set((prompt.origins or ())[-read.line :]) == {"template"}
    assert (prompt.origins or ())[: -read.line] == read.task_prompt.prompt.origins
    items = item_positions(model, read.task_prompt)
    assert len(items) == len(read.ids) - read.line
    assert [item for item in items if item is not None] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("spec", ["none", "hint", "separator", "repeat-prompt"])
@pytest.mark.parametrize("form", ["copy-last:uniform=true", "count-word"])
def test_the_last_item_is_found_in_a_rewritten_prompt(
    model: TransformerBridge, form: str, spec: str
) -> None:
    mitigation = None if spec == "none" else mitigations.mitigation(spec)
    asked = render_prompt(model, task(form), 5, mitigation=mitigation)
    read = read_at(model, asked, "last-item")
    text, item = model.tokenizer.decode(list(read.ids)), task(form).items(5)[-1]  # pyright: ignore[reportOptionalMemberAccess]
    after = task(form).parts(asked.pieces)[2]
    assert text.endswith(item)
    # The last copy: after it the sequence's end does not come again.
    assert asked.asked_text.startswith(text + after[:8])
    assert item + after[:8] not in asked.asked_text[len(text) :]


@dataclass(frozen=True)
class Spelled(ost.mitigations.Mitigation):
    """Writes the sequence in words."""

    def prompt(self, text: str) -> str:
        return text.replace("1", "one ")


def test_without_a_template_the_line_is_begun_on_a_line_of_its_own(
    embedded: TransformerBridge,
) -> None:
    asked = render_prompt(embedded, COUNT, 4)
    assert not asked.chat
    read = read_at(embedded, asked)
    assert [*read.ids, *read.answer] == ost.encode(
        embedded, f"{COUNT.prompt(4)}\n{LINE}4"
    ).ids.tolist()


def test_a_task_without_words_before_its_answer_is_read_at_the_end_of_the_template(
    model: TransformerBridge,
) -> None:
    asked = render_prompt(model, AppendixTask("count-ones-figure-5"), 4)
    answer, end = (read_at(model, asked, position) for position in ("answer", "prompt-end"))
    assert (answer.ids, model.tokenizer.decode(list(answer.answer))) == (end.ids, "4")


@dataclass(frozen=True)
class Dots(ost.tasks.Task):
    """A task of five letters, for a vocabulary of seven tokens."""

    name = "dots"

    @property
    def numeric(self) -> bool:
        return True

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        return ("a",) * length

    def parts(self, pieces: Any) -> tuple[str, str, str]:
        return "b", "".join(pieces), "."

    def key(self, pieces: Any) -> str:
        return "1"

    def carriers(self, items: Any) -> tuple[int, ...]:
        return (0,)

    def answer_line(self, answer: str) -> str:
        return f"b{answer}"


class Word(Dots):
    """A task whose answer is a word that the vocabulary joins with the blank before it."""

    @property
    def numeric(self) -> bool:
        return False

    def key(self, pieces: Any) -> str:
        return "the"

    def answer_line(self, answer: str) -> str:
        return f"It is {answer}"


def test_a_word_begins_with_its_blank_where_a_number_would_not(model: TransformerBridge) -> None:
    read = read_at(model, render_prompt(model, Word(), 2))
    assert "".join(read.prompt(model).tokens[-read.line :]) == "It is"
    assert [token_text(model.tokenizer, index) for index in read.answer] == [" the"]


class OneOfTwo(Word):
    def key(self, pieces: Any) -> str:
        return "the" if len(pieces) % 2 else "ox"


def test_prompts_whose_lines_are_begun_otherwise_are_not_put_beside_each_other(
    model: TransformerBridge,
) -> None:
    with pytest.raises(
        ost.InputError,
        match="dots at length 4: expected the answer 'ox' to begin with a token of its own",
    ):
        prefilled_prompts(model, OneOfTwo(), [3, 4], [0])


def joining(joined: tuple[str, str]) -> TransformerBridge:
    model = tiny_model("llama", seed=5, fresh=True, context=64)
    model.tokenizer = joining_tokenizer(joined)
    return model


def test_a_line_that_would_join_the_prompts_end_is_begun_in_its_own_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        position_module, "_TWO_ANSWERS", ("1", "a")
    )  # the vocabulary has no other digit
    model = joining((".", "\n"))
    asked = render_prompt(model, Dots(), 2)
    assert asked.prompt.ids.tolist() == [5, 4, 4, 1]
    assert read_at(model, asked).ids == (
        5,
        4,
        4,
        1,
        2,
        5,
    )  # not [..., 3, 5]: token 3 is a full stop and a line's end


def test_a_last_item_that_its_tokenizer_joins_with_what_follows_is_refused() -> None:
    model = joining(("a", "."))
    asked = render_prompt(model, Dots(), 2)
    assert asked.prompt.tokens[-1] == "a."
    with pytest.raises(
        ost.InputError,
        match=r"dots: expected the sequence to end with a token, found 'a\.', which this",
    ):
        read_at(model, asked, "last-item")


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (
            lambda model: ost.collapse(model, COUNT, position=cast(Any, "end"), **SOME),
            "position: expected .*, found 'end'",
        ),
        (
            lambda model: ost.collapse(model, "figure-5a", position="answer", **SOME),
            "expected a task's prompt for 'answer', found figure-5a, whose end is compared",
        ),
        (
            lambda model: ost.sensitivity(model, "The 1", position="last-item"),
            "expected a task's prompt for 'last-item', found a prompt without a task, which is read at its last token",
        ),
        (
            lambda model: ost.attention(model, "The 1", position="answer"),
            "expected a task's prompt for 'answer', found a prompt without a task",
        ),
        (
            lambda model: ost.collapse(
                model, "copy-last:uniform=true", position="last-item", **SOME
            ),
            "copy-last at 'last-item': expected the prompts of 2 and 3 items to end in the same token, found '8' and '5'",
        ),
        (
            lambda model: read_at(
                model, render_prompt(model, COUNT, 3, mitigation=Spelled()), "last-item"
            ),
            "count-ones: expected the task's sequence in the prompt as the task writes it, found it rewritten",
        ),
        (
            lambda model: ost.sensitivity(
                model,
                questions("count-ones", lengths=[3], mitigation="hint")[0],
                mitigation="separator",
            ),
            "separator: expected a task's question as it is made without a mitigation or examples, found one under 'hint'",
        ),
        (
            lambda model: read_at(model, render_prompt(model, COUNT, 430)),
            "expected at most 512 tokens .the model's context., found 608",
        ),
    ],
)
def test_refusals(model: TransformerBridge, measure: Any, words: str) -> None:
    refused(words, measure, model)


def test_the_end_of_a_text_is_its_last_token(model: TransformerBridge) -> None:
    options: dict[str, Any] = {"linearisations": "full", "method": "sketch"}
    named, plain = (
        ost.sensitivity(model, "The 1", position="prompt-end", **options),
        ost.sensitivity(model, "The 1", **options),
    )
    assert named.frame.equals(plain.frame)
    some: dict[str, Any] = {"lengths": [1, 2], "dtypes": ["float32"]}
    named_pairs = ost.collapse(model, "figure-5a", position="prompt-end", **some)
    assert named_pairs.frame.equals(ost.collapse(model, "figure-5a", **some).frame)


def test_a_model_that_thinks_first_has_no_line_to_begin() -> None:
    phi = TEMPLATES["phi-3"]
    model = with_template(
        replace(phi, source=phi.source.replace("'<|assistant|>\n'", "'<|assistant|>\n<think>\n'"))
    )
    asked = render_prompt(model, COUNT, 3)
    assert asked.thinks
    with pytest.raises(
        ost.InputError, match="found one with which the model thinks first: read at 'prompt-end'"
    ):
        read_at(model, asked)
    assert read_at(model, asked, "prompt-end").ids == tuple(asked.prompt.ids.tolist())


def test_the_plain_prompts_end_gives_the_numbers_of_its_ids(model: TransformerBridge) -> None:
    """To the bit: what was stored before positions had names is still explained."""
    ids = {n: ost.encode(model, COUNT.prompt(n)).ids.tolist() for n in (2, 3, 5, 6)}
    pairs = PairsOfIds({n: (ids[n], ids[n + 1]) for n in (2, 5)})
    lengths: dict[str, Any] = {"lengths": [2, 5], "dtypes": ["float32", "bfloat16"]}
    found = ost.collapse(model, COUNT, position="prompt-end", chat=False, **lengths)
    columns = [
        "length",
        "dtype",
        "site",
        "per",
        "norm",
        "mean",
        "pair_noise",
        "float64_distance",
        "next_token",
    ]
    assert found.frame[columns].equals(ost.collapse(model, pairs, **lengths).frame[columns])


def test_pairs_that_are_rendered_take_no_options() -> None:
    pairs = as_pairs(tiny_model("gemma"), COUNT, None, "answer", {})
    with pytest.raises(ost.InputError, match=r"bos: .* is rendered already"):
        ost.collapse(tiny_model("gemma"), cast(Any, pairs), lengths=[2], bos=False)
