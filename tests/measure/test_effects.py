"""What ablations are judged by: against Hugging Face and the other measurements; slopes against
finite differences of gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.hooks import Edge, Head, Sublayer
from ostools.measure.ablation import ablation as module
from ostools.measure.ablation.questions import (
    ScalarMeasure,
    log_probability,
    of_task,
    pair_distance,
)
from ostools.measure.answers.answers import answer_log_probability
from ostools.measure.position import answer_text, line_ids
from ostools.measure.task_prompt import render_prompt
from tests.checkpoints import Family, make_model, tiny_model

TINY: dict[str, Any] = {"d_model": 16, "d_mlp": 24, "d_head": 4, "scale": 1.5}
IDS = torch.tensor([2, 40, 50, 60, 60, 61, 70])
LONGER = torch.tensor([2, 40, 50, 60, 60, 60, 61, 70])
MEASURES: dict[str, ScalarMeasure] = {
    "answers": log_probability(IDS, torch.tensor([80, 81]), None),
    "answers-ended": log_probability(IDS, torch.tensor([80, 81]), torch.tensor([1, 33])),
    "collapse": pair_distance(IDS, LONGER),
}
TARGETS: dict[str, Sequence[Any]] = {
    "heads": [Head(0, 1), Head(0, 3), Head(1, 0)],
    "edges": [Edge(0, 1, 6, 3), Edge(1, 0, 6, 5)],
    "layers": [Sublayer(0, "attention"), Sublayer(0, "mlp"), Sublayer(1, "mlp")],
}


def double(family: Family) -> TransformerBridge:
    return tiny_model(family, seed=1, dtype=torch.float64, **TINY)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("family", "what"), [("gemma2", "heads"), ("llama", "edges"), ("gpt2", "layers")]
)
def test_slopes_are_finite_differences_of_the_gates(
    family: Family, what: str, measure: str
) -> None:
    model, judged, targets, step = double(family), MEASURES[measure], TARGETS[what], 1e-5

    def gated(gates: Tensor) -> Any:
        return hooks.gated(model, targets, gates)

    with hooks.exact_arithmetic(model):
        slopes = judged.slopes(model, targets)
        for index in range(len(targets)):
            move = step * torch.eye(len(targets), dtype=torch.float64)[index]
            with gated(1 + move):
                above = judged.value(model)
            with gated(1 - move):
                below = judged.value(model)
            difference = (above - below) / (2 * step)
            assert float(slopes[index]) == pytest.approx(difference, rel=1e-6, abs=1e-8)
    assert (slopes != 0).all()


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_distances_and_probabilities_against_hugging_face(family: Family) -> None:
    model = tiny_model(family, seed=5, **TINY)
    plain: Any = make_model(family, seed=5, **TINY)
    with torch.no_grad():
        first, second = (
            plain(ids[None], output_hidden_states=True).hidden_states[-1][0, -1]
            for ids in (IDS, LONGER)
        )
        logits = (
            plain(torch.cat([IDS, torch.tensor([80])])[None]).logits[0].double().log_softmax(-1)
        )
    distance = MEASURES["collapse"].value(model)
    assert distance == pytest.approx(float((first - second).norm()), rel=1e-5)
    probability = MEASURES["answers"].value(model)
    assert probability == pytest.approx(float(logits[-2, 80] + logits[-1, 81]), rel=1e-5)


def test_the_answer_has_the_probability_that_evaluation_reports() -> None:
    model = tiny_model("llama", seed=6, **TINY)
    posed = render_prompt(model, ost.tasks.task("copy-first"), 5, chat=False)
    question = of_task(model, posed.task, 5, 0, ["answers"], prefilled=False, chat=False)
    found = question.measures["answers"].value(model)
    text = answer_text(posed)
    expected = answer_log_probability(model, [posed.prompt], [text])[0]
    assert found == pytest.approx(expected, rel=1e-5)
    begun = of_task(model, posed.task, 5, 0, ["answers"], prefilled=True, chat=False)
    line = [*posed.prompt.ids.tolist(), *line_ids(model, posed.prompt, text)]
    assert begun.prompt.tolist() == line[: len(begun.prompt)]
    assert model.tokenizer.decode(begun.prompt).endswith("question is: ")  # pyright: ignore[reportOptionalMemberAccess]


def test_what_is_not_finite_is_refused() -> None:
    model = tiny_model("llama", seed=6, **TINY)
    broken = ScalarMeasure("pair_distance", lambda _: torch.tensor(float("nan")))
    prompt = module.AblatedPrompt("t", 1, 0, IDS, {"collapse": broken})
    with pytest.raises(ost.InputError, match="the pair_distance with nothing taken out is not fin"):
        list(module._rows(model, prompt, [Head(0, 1)], None))
