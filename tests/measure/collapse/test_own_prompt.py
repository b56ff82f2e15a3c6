"""A text and what is repeated after it, without a task object: the numbers of the task that says the same."""

from __future__ import annotations

from typing import Any

import pytest

import ostools as ost
from tests.checkpoints import tiny_model

SOME: dict[str, Any] = {"lengths": [1, 2, 5], "dtypes": ["float32"]}


@pytest.mark.parametrize(("item", "items"), [("1", "text"), (None, "ids")])
def test_a_prompt_and_its_item_are_the_repeat_task_of_the_same(item: str | None, items: Any) -> None:
    model = tiny_model("gemma")
    found = ost.collapse(model, prompt="The 11", item=item, **SOME)
    task = ost.collapse(model, ost.tasks.RepeatTask("prompt", "The 11", item, items), **SOME)
    assert found.frame.equals(task.frame)
    assert found.reference.equals(task.reference)


def test_tokens_repeat_their_last() -> None:
    model = tiny_model("gemma")
    prompt = ost.encode(model, "The 11")
    assert ost.collapse(model, prompt=prompt, **SOME).frame.equals(ost.collapse(model, prompt, **SOME).frame)


def test_what_is_to_be_repeated_has_to_be_clear() -> None:
    model: Any = tiny_model("gemma")
    collapse: Any = ost.collapse
    with pytest.raises(ost.InputError, match=r"expected a task, such as 'figure-5a', or prompt= .* found neither"):
        collapse(model, **SOME)
    with pytest.raises(ost.InputError, match="found both"):
        collapse(model, "figure-5a", prompt="a", **SOME)
    with pytest.raises(ost.InputError, match=r"item=' 1' is repeated after a text: .* found none"):
        collapse(model, "figure-5a", item=" 1", **SOME)
    with pytest.raises(ost.InputError, match="found a Prompt, whose last token is repeated"):
        collapse(model, prompt=ost.encode(model, "a"), item=" 1", **SOME)
