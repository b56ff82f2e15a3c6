"""The run-time contract: every pass and every layer is verified, a broken invariant raises, what
did not act is not active.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ostools import hooks
from ostools.mitigations import (
    Hint,
    Mitigation,
    MitigationError,
    Separator,
    acts,
    changes_pass,
    compose,
    running,
)
from tests.checkpoints import Family, tiny_model

IDS = torch.tensor([3, 5, 7, 9, 11, 13])


@dataclass(frozen=True)
class Halved(Mitigation):
    """Halves every score; its invariant is that rows sum to 1. Notes what it was shown."""

    seen: list[Any] = field(default_factory=list, compare=False)

    @contextmanager
    def hooks(self, model: Any) -> Iterator[None]:
        with hooks.scale_scores(model, 0.5):
            yield

    def verify(self, record: Mapping[str, Any]) -> None:
        ((layer, pattern),) = record["pattern"].items()
        ((_, scores),) = record["scores"].items()
        assert scores.shape == pattern.shape
        self.seen.append((layer, tuple(pattern.shape), scores.clone(), pattern.clone()))
        if not torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-5):
            raise MitigationError(f"Halved: a row of layer {layer} does not sum to 1")


@dataclass(frozen=True)
class Broken(Halved):
    """Says that rows sum to 1, and cuts weights in the last layer only."""

    @contextmanager
    def hooks(self, model: Any) -> Iterator[None]:
        last = model.cfg.n_layers - 1
        with hooks.replace_pattern(model, lambda pattern, layer: pattern * 0.9, layers=[last]):
            yield


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_every_layer_of_every_pass_is_verified(family: Family) -> None:
    model = tiny_model(family)
    halved = Halved()
    with torch.no_grad(), running(model, halved):
        model(IDS[None])
        model(IDS[None, :4])
    n_layers = int(model.cfg.n_layers)
    assert [layer for layer, *_ in halved.seen] == [*range(n_layers), *range(n_layers)]
    assert {shape[-1] for _, shape, *_ in halved.seen} == {6, 4}
    for _, _, scores, pattern in halved.seen:
        assert torch.allclose(
            scores.float().softmax(-1), pattern.float(), atol=1e-6
        )  # what is shown is what acted
    assert not hooks.active_edits(model)


def test_a_broken_invariant_in_one_layer_raises_and_leaves_nothing_behind() -> None:
    model = tiny_model("llama")
    before = model(IDS[None])
    with (
        pytest.raises(
            MitigationError, match=f"a row of layer {model.cfg.n_layers - 1} does not sum"
        ),
        running(model, Broken()),
    ):
        model(IDS[None])
    assert not hooks.active_edits(model)
    assert torch.equal(model(IDS[None]), before)


def test_an_invariant_that_no_pass_could_show_raises() -> None:
    @dataclass(frozen=True)
    class OnlyVerifies(Halved):
        def hooks(self, model: Any) -> Any:
            return Mitigation.hooks(self, model)

    with (
        pytest.raises(
            MitigationError, match="OnlyVerifies: expected a forward pass to verify, found none"
        ),
        running(tiny_model("llama"), OnlyVerifies()),
    ):
        pass


@dataclass(frozen=True)
class Suffix(Mitigation):
    """Rewrites the prompt, and puts one number into a pattern: the later of two sees what the
    earlier left.
    """

    text: str
    weight: float = 0.0
    found: list[float] = field(default_factory=list, compare=False)

    def prompt(self, text: str) -> str:
        return text + self.text

    def hooks(self, model: Any) -> Any:
        def body(pattern: torch.Tensor, layer: int) -> torch.Tensor:
            self.found.append(float(pattern[0, 0, -1, 0]))
            return torch.full_like(pattern, self.weight)

        return hooks.replace_pattern(model, body, layers=[0])


def test_composed_mitigations_act_in_their_order() -> None:
    one, two, model = Suffix(" a", 0.25), Suffix(" b", 0.5), tiny_model("llama")
    assert compose(one, two).prompt("x") == "x a b"
    assert compose(two, one).prompt("x") == "x b a"
    with torch.no_grad(), running(model, compose(one, two)):
        model(IDS[None])
    assert two.found == [0.25]
    assert one.found != [0.5]
    assert compose(Separator(2), Separator(3, ";")).sequence("1234") == [
        "1",
        "2",
        ",",
        ";",
        "3",
        "4",
    ]


def test_no_mitigation_and_a_prompt_rewrite_leave_the_pass_alone() -> None:
    model = tiny_model("llama")
    plain = model(IDS[None])
    for nothing in (None, Hint(), compose(Separator(), Hint())):
        with running(model, nothing):
            assert not hooks.active_edits(model)
            assert torch.equal(model(IDS[None]), plain)
        assert not changes_pass(nothing)
        assert not acts(model, nothing, IDS)
