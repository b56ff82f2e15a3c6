"""What people do with a model before, between and after measurements leaves every number as it was."""

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from tests.checkpoints import write_checkpoint

IDS = torch.tensor([[1, 5, 9, 4, 9]])


def _added_and_removed(model: TransformerBridge) -> None:
    model.add_hook("blocks.0.hook_resid_pre", lambda tensor, hook: tensor * 2)
    model(IDS)
    model.reset_hooks()


HABITS: dict[str, Callable[[TransformerBridge], object]] = {
    "run_with_cache": lambda model: model.run_with_cache(IDS),
    "generate": lambda model: model.generate(IDS, max_new_tokens=2, verbose=False),
    "add_hook and reset_hooks": _added_and_removed,
}


def _numbers(model: TransformerBridge) -> dict[str, Any]:
    prompt = ost.Prompt.from_ids(model, IDS[0])
    measured, paths = (
        ost.sensitivity(model, prompt),
        ost.bounds(model, prompt, variants=["local", "theorem-5.1"]),
    )
    frames = [measured.frame, paths.frame, ost.attention(model, prompt).frame]
    assert measured.provenance.edits == paths.provenance.edits == ()
    return {str(index): frame.to_dict("list") for index, frame in enumerate(frames)}


@pytest.fixture(scope="module")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> TransformerBridge:
    return ost.load_model(write_checkpoint(tmp_path_factory.mktemp("habits") / "model", "gemma"))


@pytest.fixture(scope="module")
def before(own_model: TransformerBridge) -> str:
    """The numbers of the model before anybody touched it."""
    return repr(_numbers(own_model))


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_leaves_no_edit_and_every_number(
    own_model: TransformerBridge, before: str, habit: str
) -> None:
    HABITS[habit](own_model)
    assert (hooks.active_edits(own_model), repr(_numbers(own_model))) == ((), before)


@pytest.mark.parametrize(
    ("left", "measure"),
    [
        (lambda model: hooks.ablate_heads(model, [(0, 0)]), ost.bounds),
        (hooks.frozen, ost.sensitivity),
    ],
)
def test_a_hook_that_an_interrupt_left_is_refused_with_the_way_out(
    own_model: TransformerBridge, before: str, left: Any, measure: Any
) -> None:
    block = left(own_model)
    block.__enter__()
    with pytest.raises(
        ost.InputError, match=r"hooks\.clear\(model\) removes one that an interrupted"
    ):
        measure(own_model, ost.Prompt.from_ids(own_model, IDS[0]))
    hooks.clear(own_model)
    assert repr(_numbers(own_model)) == before


@pytest.mark.slow
def test_a_small_model_is_measured_with_one_thread_and_others_come_back(
    own_model: TransformerBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def threads_in_a_call() -> set[int]:
        seen: set[int] = set()
        prompt = ost.Prompt.from_ids(own_model, IDS[0])
        ost.bounds(own_model, prompt, progress=lambda *_: seen.add(torch.get_num_threads()))
        return seen

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert (threads_in_a_call(), torch.get_num_threads()) == ({1}, 2)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert threads_in_a_call() == {2}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("progress", [None, False])
def test_a_long_call_has_a_bar_unless_silenced(
    own_model: TransformerBridge, monkeypatch: pytest.MonkeyPatch, progress: bool | None
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("ostools.ground.progress._DELAY", 0.0)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    ost.bounds(
        own_model, ost.Prompt.from_ids(own_model, IDS[0]), variants="local", progress=progress
    )
    assert ("bounds: " in terminal.getvalue()) == (progress is None)
