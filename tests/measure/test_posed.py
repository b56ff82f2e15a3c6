"""A question as a model gets it: rewritten, in tokens, with the tokens that carry its answer."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import ostools as ost
from ostools.measure.task_prompt import carrier_positions, render_prompt
from ostools.mitigations import Hint, MitigationError, Separator
from ostools.tasks import task
from tests.checkpoints import refused, tiny_model, trained

EMBEDDED = trained("embedded")


@pytest.mark.parametrize(
    ("spec", "mitigation", "carried", "key"),
    [
        ("copy-last", None, ["0"], "0"),
        ("copy-first", "interleave", ["0"], "0"),
        ("copy-last", "interleave", ["0"], "0"),
        ("copy-last", "separator:every=2 + hint", ["0"], "0"),
        ("copy-last", "repeat-prompt:times=3", ["0"] * 3, "0"),
        ("count-ones", "separator:every=2", ["1"] * 6, "6"),
        ("count-ones", "interleave", ["1"] * 6, "6"),
        ("sum-ones", "interleave", ["1"] * 6, "6"),
        ("sum-ones:mode=cot-few-shot", None, ["1"] * 6, "6"),
        ("copy", "separator:every=4", ["1"] * 6, "1111,11"),
    ],
)
def test_the_tokens_that_carry_the_answer(
    spec: str, mitigation: str | None, carried: list[str], key: str
) -> None:
    posed = render_prompt(
        EMBEDDED,
        task(spec),
        6,
        mitigation=None if mitigation is None else ost.mitigations.mitigation(mitigation),
    )
    found = carrier_positions(EMBEDDED, posed)
    assert [posed.prompt.tokens[position] for position in found] == carried
    assert (posed.key, posed.line) == (key, task(spec).answer_line(key))
    assert posed.rewritten == (mitigation is not None)


@pytest.mark.parametrize("name", ["count-ones-bernoulli", "count-word"])
def test_random_sequences_carry_their_answer_in_as_many_items_as_it_counts(name: str) -> None:
    for seed in range(5):
        posed = render_prompt(EMBEDDED, task(name), 12, seed=seed, mitigation=Separator(5))
        found = carrier_positions(EMBEDDED, posed)
        shown = [posed.prompt.tokens[position].strip() for position in found]
        assert "".join(shown) == ("car" if name == "count-word" else "1") * int(posed.key)


@pytest.mark.parametrize(
    ("spec", "mitigation", "message"),
    [
        ("copy", "interleave", "expected the answer '11111111' to stand"),
        ("sum-ones", "separator", "expected numbers between the plus signs, found ','"),
        ("count-word", "interleave", "expected a sequence of zeros and ones"),
    ],
)
def test_a_mitigation_that_does_not_fit_the_task(spec: str, mitigation: str, message: str) -> None:
    with pytest.raises((ost.InputError, MitigationError), match=message):
        render_prompt(
            EMBEDDED, task(spec), 8, mitigation=ost.mitigations.mitigation(mitigation), seed=1
        )


def test_a_separator_that_the_tokenizer_merges_is_detected() -> None:
    model = tiny_model("llama", fresh=True)
    model._tokenizer = _merging(",1")
    with pytest.raises(
        ost.InputError,
        match=r"expected inserted text in tokens of its own, found ' ?,1'.*use another separator",
    ):
        render_prompt(model, task("count-ones"), 6, mitigation=Separator(2))
    assert render_prompt(model, task("count-ones"), 6, mitigation=Separator(2, ";")).rewritten
    assert render_prompt(model, task("count-ones"), 6).key == "6"


def _merging(merged: str) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters, and one token of two."""
    characters = [chr(code) for code in range(32, 127)]
    vocabulary = {
        token: index for index, token in enumerate(["<bos>", "<unk>", *characters, merged])
    }
    core = Tokenizer(models.BPE(vocabulary, [(merged[0], merged[1])], unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", unk_token="<unk>")


def test_a_right_answer_of_several_lines_is_refused() -> None:
    for text in ("\n", "\r\n", "\u2028"):
        with pytest.raises(
            ost.InputError, match="copy: expected a right answer of one line, found '1111"
        ):
            render_prompt(EMBEDDED, task("copy"), 8, mitigation=Separator(4, text))
    assert render_prompt(EMBEDDED, task("count-ones"), 8, mitigation=Separator(4, "\n")).key == "8"
    assert (
        render_prompt(EMBEDDED, task("copy"), 3, mitigation=Separator(4, "\n")).key == "111"
    )  # nothing was inserted


def test_what_carries_nothing_and_what_was_rewritten_is_refused() -> None:
    class Shouts(Hint):
        def prompt(self, text: str) -> str:
            return text.replace("1", "one ")

    posed = render_prompt(EMBEDDED, task("copy-last"), 5, mitigation=Shouts())
    refused("found it rewritten", carrier_positions, EMBEDDED, posed)
    none = next(seed for seed in range(99) if task("count-ones-bernoulli").answer(1, seed) == "0")
    with pytest.raises(ost.InputError, match="no item carries the answer '0'"):
        carrier_positions(
            EMBEDDED, render_prompt(EMBEDDED, task("count-ones-bernoulli"), 1, seed=none)
        )
