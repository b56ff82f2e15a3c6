"""What watches the tests sees what it says it sees: traces that a test leaves, and values that are
not what an annotation says.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

from ostools import hooks
from ostools.theory import distances
from tests import traces
from tests.checkpoints import tiny_model

TOKENS = torch.tensor([[2, 40]])
CHANGES: dict[str, Callable[[Any, ExitStack], object]] = {
    "written to": lambda model, _: model.ln_final.weight.mul_(1.0),  # no number changes
    "edited": lambda model, stack: stack.enter_context(hooks.scale_scores(model, 0.5)),
    "trained": lambda model, _: model.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_told_once_with_what_it_is(change: str) -> None:
    model = traces.watched(tiny_model("llama", fresh=True), "mine")
    model(TOKENS)  # where the bridge places hooks of its own
    assert traces.changes(numbers=True) == []
    with ExitStack() as stack:
        CHANGES[change](model, stack)
        model(TOKENS)  # an edit that nothing met is refused
        ((found, said),) = traces.changes(numbers=False)
    assert (found, said[:6]) == (model, "mine: ")
    assert traces.changes(numbers=True) == []


def test_a_write_that_torch_does_not_count_is_seen_in_the_numbers() -> None:
    model = traces.watched(tiny_model("llama", fresh=True), "mine")
    model.ln_final.weight.data[0] += 1
    assert traces.changes(numbers=False) == []
    assert [said for _, said in traces.changes(numbers=True)] == [
        "mine: its weights are other numbers"
    ]


ONES = torch.ones(3)


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(3, 1), torch.ones(3).int(), 1.0])
def test_the_functions_of_the_house_are_checked(other: Any) -> None:
    with pytest.raises(TypeCheckError):
        distances.total_variation(ONES, other)
