"""`probe` on models: its prompts, its representations, its control on random weights, and what it
refuses.
"""

from typing import Any

import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.measure import position as position_module
from ostools.measure.answers.prefilled import prefilled_prompts
from ostools.measure.collapse.prompt_sets import RenderedPairs
from ostools.measure.passes.last_tokens import own_rows
from ostools.measure.probes.scores import captured
from ostools.results import frame_of
from ostools.tasks import AppendixTask, task
from tests.checkpoints import TEXT_FAMILIES, refused, tiny_model
from tests.sets import quick


def test_a_line_that_is_cut_by_its_answer_is_refused(embedded, monkeypatch) -> None:
    def cut(model: Any, prompt: Any, line: str) -> tuple[int, ...]:
        return (9,) if line.endswith("12") else (1, 2, ord(line[-1]))

    monkeypatch.setattr(position_module, "line_ids", cut)
    pairs = RenderedPairs(embedded, AppendixTask("count-ones"), encoding={"chat": False})
    assert pairs.prompts([11, 13], 0)
    with pytest.raises(
        ost.InputError,
        match="count-ones at length 12: expected the answer '12' to begin with a token of",
    ):
        pairs.prompts([11, 12], 0)


def test_any_answer_begins_behind_the_begun_line(embedded) -> None:
    for name in ("copy-last:uniform=true", "retrieve-at-position", "copy:uniform=true"):
        prompts = prefilled_prompts(embedded, task(name), [4, 7], range(8))
        assert len({one.token for one in prompts}) > 2
        for one in prompts:
            line = (
                embedded.tokenizer.decode([*one.ids[-one.line :], *one.answer])
                if one.line
                else one.task_prompt.key
            )
            assert line.strip() == one.task_prompt.line.strip()
            assert one.group == one.task_prompt.seed


def test_prompts_that_are_the_same_are_one(embedded) -> None:
    prompts = prefilled_prompts(embedded, task("count-ones-bernoulli"), [1, 2], range(30))
    assert len(prompts) == len({one.ids for one in prompts}) == 6  # 1, 0, 11, 10, 01, 00


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma2", "gpt2"))
def test_every_place_is_the_models_own(family: str) -> None:
    model = tiny_model(family)
    prompts = prefilled_prompts(model, task("count-ones-bernoulli:tidy=true"), [1, 3], range(2))
    found = {(place.site, place.layer): rows for place, rows in captured(model, prompts).items()}
    for number, one in enumerate(prompts):
        alone, logits = own_rows(model, [one.ids], logits_to_keep=1)
        assert torch.allclose(
            found["residual", 2][number], alone.residuals[2][0], rtol=0, atol=1e-4
        )
        assert torch.allclose(found["y", 2][number], alone.y[0], rtol=0, atol=1e-5)
        assert torch.allclose(found["logits", 2][number], logits[0, -1], rtol=0, atol=1e-5)
        with torch.no_grad(), hooks.capture(model, "mlp_output", layers=[1]) as record:
            model(torch.tensor([one.ids]))
        behind = found["residual_mid", 1][number] + record["mlp_output"][1][0, -1]
        assert torch.allclose(found["residual", 2][number], behind, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_copied_digit_is_decoded_and_rows_say_what_they_are(embedded) -> None:
    found = ost.probe(
        embedded,
        "copy-last:uniform=true",
        lengths=range(3, 8),
        seeds=range(12),
        random_weights=False,
    )
    frame = frame_of(found)
    assert set(frame["site"]) == {
        *("embedding", "residual_mid", "residual", "y", "logits", "length")
    }
    whole = frame[(frame["site"] == "y") & (frame["control"] == "none")]
    assert whole.set_index("test")["accuracy"]["same lengths"] > 0.9
    at_embedding = frame[(frame["site"] == "embedding") & (frame["control"] == "none")]
    assert not at_embedding["finding"].eq("decodable").any()
    assert set(frame["dtype"]) == {"float32", "none"}
    assert found.provenance.parameters["prompts"] == 60
    places = len(frame.drop_duplicates(["site", "layer"])) - 1  # but the length alone
    same_lengths = [test for test in found.predictions["test"] if test == "same lengths"]
    assert len(same_lengths) == 60 * (2 * places + 1)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        (
            "copy-last",
            {},
            "found that all have '0': give more lengths or seeds, or an option that draws its items, such as uniform=true",
        ),
        (
            "copy:uniform=true",
            {"seeds": range(6)},
            "expected a task whose answer is a number or one digit, found the answer '[0-9]{2}",
        ),
        ("count-ones", {"lengths": range(1, 5)}, "at least 5 lengths, .* found 4; for example"),
        (
            "count-ones",
            {"lengths": range(1, 6)},
            r"at least 6 lengths, .* for example lengths=range",
        ),
        (
            "count-ones-bernoulli",
            {"seeds": range(5)},
            "at least 6 seeds, each a sequence of its own",
        ),
        ("count-ones", {"seeds": [1]}, "draws nothing at random"),
        ("count-ones", {"dtypes": ["float31"]}, "unknown dtype 'float31': did you mean 'float32'"),
        ("count-ones", {"lengths": [1, 2, 3, 4, 5, 250]}, "at most 256 tokens"),
    ],
)
def test_what_cannot_be_asked_is_refused(name: str, given: dict, words: str) -> None:
    refused(words, ost.probe, tiny_model("gemma"), name, **({"lengths": range(1, 9)} | given))


def test_a_line_that_counts_come_before_is_not_begun_right_after_the_prompt() -> None:
    model = tiny_model("gemma", context=1024, fresh=True)
    with pytest.raises(ost.InputError, match=r"partition.* asks for counts before the answer line"):
        ost.probe(model, "count-ones", lengths=range(1, 9), mitigation="partition")
