"""A vocabulary without a line's end: answers end with the text, or at max_new_tokens where nothing
else could end them.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import ostools as ost
from ostools.measure.answer_line import line_ids
from ostools.measure.answers.probability import answer_log_probability
from tests.checkpoints import make_tokenizer, tiny_model

NEWLINE = "\u010a"  # as byte-level BPE writes it
TASK = "count-ones"


def without_newline(unknown: bool, eos: bool) -> Any:
    """The byte-level tokenizer without a token for a line's end, which it drops, or takes for an
    unknown one.
    """
    state = json.loads(make_tokenizer(fresh=True).backend_tokenizer.to_str())
    spare = state["model"]["vocab"].pop(NEWLINE)
    state["model"]["vocab"]["\u0411"] = spare  # so that no id is missing
    state["model"]["unk_token"] = "<unk>" if unknown else None
    special = {"bos_token": "<bos>", "unk_token": "<unk>"} | ({"eos_token": "<eos>"} if eos else {})
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        clean_up_tokenization_spaces=False,
        **special,
    )


def model_of(unknown: bool, eos: bool) -> Any:
    model: Any = tiny_model("llama", context=512, fresh=True)
    model._tokenizer = without_newline(unknown, eos)
    if not eos:
        config: Any = model.original_model.generation_config
        config.eos_token_id = None
    return model


@pytest.mark.parametrize("unknown", [True, False])
def test_evaluation_runs_and_says_what_ends_an_answer(unknown: bool) -> None:
    model = model_of(unknown, eos=True)
    found = ost.evaluate(model, TASK, elicitation="zero-shot", lengths=[2, 3], max_new_tokens=4)
    assert (
        found.provenance.parameters["answers_end_at"]
        == "the end of the text: the vocabulary has no line's end"
    )
    assert set(found.frame["ended"]) <= {"eos", "length"}
    assert "\n" not in "".join(found.frame["text"])
    # The probability of the right line is that of its tokens behind a blank, and of the end of
    # text: by hand.
    prompt = ost.encode(model, ost.tasks.task(TASK).prompt(2))
    line = line_ids(model, prompt, "\n2")
    assert model.tokenizer.decode(line).strip() == "2"
    ids = torch.cat([prompt.ids, torch.tensor(line)])[None]
    scores = model(ids)[0].log_softmax(-1)
    steps = [*line, model.tokenizer.eos_token_id]
    by_hand = sum(
        float(scores[len(prompt.ids) - 1 + step, token]) for step, token in enumerate(steps)
    )
    (said,) = answer_log_probability(model, [prompt], ["\n2"])
    assert said == pytest.approx(by_hand, rel=1e-5)


def test_without_any_end_max_new_tokens_ends_an_answer() -> None:
    model = model_of(unknown=False, eos=False)
    found = ost.evaluate(model, TASK, elicitation="zero-shot", lengths=[2], max_new_tokens=4)
    frame: Any = found.frame
    assert found.provenance.parameters["answers_end_at"].startswith(
        "max_new_tokens: the vocabulary has neither"
    )
    assert found.provenance.parameters["probability"] is False
    assert set(frame["ended"]) == {"limit"}
    assert set(frame["kind"]) <= {"answered", "something else"}
    assert all(math.isnan(value) for value in frame["log_probability"])
