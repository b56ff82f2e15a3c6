"""A 16-bit model answers in its own dtype, also where what is measured beside the answer is
measured in float32.
"""

import copy
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.results import frame_of
from tests.checkpoints import tiny_model

FORM, LENGTH = "count-ones", 3


@pytest.fixture(scope="module")
def two_answers() -> tuple[TransformerBridge, ost.Prompt, int, int]:
    """A bfloat16 model, a prompt, and the tokens that it and plain transformers in float32 rank
    first after it: another row of the output matrix is the winner's, a step larger in one
    coordinate, which bfloat16 logits cannot show."""
    model = tiny_model("llama", seed=3, scale=1.5, dtype=torch.bfloat16, context=512, fresh=True)
    prompt = ost.encode(model, "count 1 1 0")
    theirs: Any = model.original_model
    wide: Any = copy.deepcopy(theirs).float()
    ids = prompt.ids[None]
    states = theirs(ids, output_hidden_states=True).hidden_states[-1][0, -1].float()
    winner = int(theirs(ids).logits[0, -1].argmax())
    rows, other = (
        theirs.lm_head.weight,
        winner + 1 if winner + 1 < len(theirs.lm_head.weight) else winner - 1,
    )
    for place in states.abs().argsort().tolist():
        rows[other] = rows[winner]
        step = torch.finfo(torch.bfloat16).eps * rows[winner, place].abs() * states[place].sign()
        rows[other, place] += step.to(rows)
        wide.lm_head.weight.copy_(rows)
        narrow, exact = (int(each(ids).logits[0, -1].argmax()) for each in (theirs, wide))
        if narrow != exact:
            return model, prompt, narrow, exact
    raise AssertionError("no coordinate in which the two dtypes differ")


def test_attribution_splits_the_logit_of_the_models_own_next_token(two_answers: Any) -> None:
    model, prompt, narrow, exact = two_answers
    assert narrow != exact
    assert ost.attribution(model, prompt).provenance.parameters["logit"] == narrow


def test_faithfulness_takes_the_models_own_answer(two_answers: Any) -> None:
    model, prompt, narrow, _ = two_answers
    found = ost.measure.faithfulness(
        model,
        ost.sensitivity(model, prompt, linearisations="full", method="sketch"),
        ways="removed",
    )
    assert found.provenance.parameters["logit"] == narrow


def test_a_study_and_an_evaluation_answer_in_the_models_own_dtype() -> None:
    """With everything measured that needs a float32 view beside; the log p are those of the model
    as it is, to the bit.
    """
    model = tiny_model("llama", seed=3, scale=1.5, dtype=torch.bfloat16, context=512)
    asked: dict[str, Any] = {"lengths": [LENGTH], "chat": False}
    study: Any = ost.measure.study(
        model, FORM, mitigations=["hint"], dtypes=["float32"], **asked
    ).frame
    own, wide = (
        frame_of(ost.evaluate(each, FORM, max_new_tokens=4, **asked))
        for each in (model, ost.models.view_in(model, torch.float32))
    )
    log_p = study[study["quantity"] == "log_probability"]["baseline"].tolist()
    assert log_p == own["log_probability"].tolist() != wide["log_probability"].tolist()


def test_a_question_says_what_the_model_itself_predicts_there(two_answers: Any) -> None:
    model, *_ = two_answers
    (question,) = ost.tasks.questions(FORM, lengths=[LENGTH])
    found = ost.bounds(model, question, variants="local", chat=False)
    ids = torch.tensor([found.provenance.token_ids])
    theirs: Any = model.original_model
    token = int(theirs(ids).logits[0, -1].argmax())
    assert found.provenance.parameters["next_tokens"] == [
        (LENGTH, 0, model.tokenizer.decode([token]))
    ]
