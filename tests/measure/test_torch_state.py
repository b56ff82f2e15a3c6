"""Whatever torch is set to around a call, every public measurement gives the numbers of a fresh
process, to the bit.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import pandas as pd
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM

import ostools as ost
from ostools.hooks.torch_state import default_torch_state
from ostools.results import Result
from tests.checkpoints import write_checkpoint
from tests.reporting.every import EVERY, model, prompt
from tests.sets import quick


@contextmanager
def _set(change: Callable[..., object], new: Any, read: Callable[[], Any]) -> Iterator[None]:
    before = read()
    change(new)
    try:
        yield
    finally:
        change(before)


STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of a GPU": lambda: _set(
        lambda on: torch.set_autocast_enabled("cuda", on),
        True,
        lambda: torch.is_autocast_enabled("cuda"),
    ),
    "default dtype": lambda: _set(torch.set_default_dtype, torch.bfloat16, torch.get_default_dtype),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": lambda: _set(
        torch.use_deterministic_algorithms, True, torch.are_deterministic_algorithms_enabled
    ),
    "rounded products": lambda: _set(
        torch.set_float32_matmul_precision, "medium", torch.get_float32_matmul_precision
    ),
    "default device": lambda: _set(torch.set_default_device, "meta", lambda: None),
    "device block": lambda: torch.device("meta"),
}

QUICK = ("Sensitivity", "Bounds", "Evaluation")
"""Each computes by another route: derivatives, formulas, generation."""
NO_MODEL = {
    "Figure4",
    "Figure8",
    "Figure9",
    "Reproduction",
    "Comparison",
    "Change",
}
NO_MODEL |= {"Profile", "AnswerDifference"}
"""Classes whose rows are read off other results, or are of no loaded model."""
NOT_TABLES = {
    "jacobian",
    "report",
    "reproduce",
    "adopt",
    "context_length",
    "describe",
    "encode",
    "untrained_model",
    "view_in",
}
"""Public functions of a model that return no table: tensors, pages made of the measurements,
models, prompts.
"""


def measure(name: str) -> Result:
    """The result of that class, measured anew; what it is read off is made before."""
    return inspect.unwrap(EVERY["FailureStage" if name == "Decodability" else name])()


def tables(result: Result) -> dict[str, pd.DataFrame]:
    """Every table of a result, without how long it took."""
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {
        name: _without_times(table)
        for name, table in found.items()
        if isinstance(table, pd.DataFrame)
    }


def _without_times(table: pd.DataFrame) -> pd.DataFrame:
    """Times are a column, or in a study the rows of a quantity."""
    if "quantity" in table:
        table = table.loc[table["quantity"] != "seconds"]
    return table.drop(columns=["seconds", "tokens_per_second"], errors="ignore")


def assert_equal(result: Result, expected: dict[str, pd.DataFrame]) -> None:
    found = tables(result)
    assert found.keys() == expected.keys()
    for name, table in found.items():
        pd.testing.assert_frame_equal(table, expected[name], check_exact=True, obj=name)


@cache
def expected_tables(name: str) -> dict[str, pd.DataFrame]:
    prompt()
    return tables(measure(name))


def _state() -> dict[str, Any]:
    matmul: Any = torch.backends.mkldnn
    return {
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "dtype": torch.get_default_dtype(),
        "inference": torch.is_inference_mode_enabled(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products": (torch.get_float32_matmul_precision(), matmul.matmul.fp32_precision),
        "device": torch.get_default_device(),
    }


@pytest.mark.parametrize("name", quick([name for name in EVERY if name not in NO_MODEL], *QUICK))
def test_no_state_changes_a_number(name: str) -> None:
    """All of them at once: whatever one of them changed would be seen."""
    expected = expected_tables(name)
    with ExitStack() as stack:
        for around in STATES.values():
            stack.enter_context(around())
        before = _state()
        found = measure(name)
        assert _state() == before
    assert_equal(found, expected)


def test_every_public_measurement_of_a_model_is_walked() -> None:
    """A new measurement has to have its row in `EVERY`."""
    missing = []
    for room in (ost.paper, ost.measure, ost.models, ost.sweep):
        for name in room.__all__:
            function = getattr(room, name)
            if not inspect.isfunction(function) or name in NOT_TABLES:
                continue
            hints = typing.get_type_hints(inspect.unwrap(function))
            returned = hints.pop("return")
            if not any(
                TransformerBridge in (hint, *typing.get_args(hint)) for hint in hints.values()
            ):
                continue
            parts = typing.get_args(returned) or (returned,)
            classes = [
                kind for part in parts for kind in typing.get_args(part) or (part,)
            ]  # of a list too
            missing += [f"{name} -> {kind}" for kind in classes if kind.__name__ not in EVERY]
    assert missing == []


@pytest.mark.parametrize("state", ["autocast", "default dtype", "inference mode", "device block"])
def test_a_jacobian_a_prompt_and_a_model_are_those_of_a_fresh_process(
    state: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = write_checkpoint(tmp_path_factory.mktemp("state") / "tiny", "gemma")

    original = AutoModelForCausalLM.from_pretrained(directory)

    def made() -> list[torch.Tensor]:
        loaded = ost.load_model(directory)
        ids = ost.encode(loaded, "the cat in").ids
        other = ost.adopt(original)
        null = ost.models.untrained_model(loaded)
        with default_torch_state():
            weights = [
                weight.clone() for part in (loaded, other, null) for weight in part.parameters()
            ]
            embedded = torch.randn(
                3, loaded.cfg.d_model, generator=torch.Generator().manual_seed(0)
            )
        return [ids, ost.measure.jacobian(loaded, embedded), *weights]

    expected = made()
    with STATES[state]():
        found = made()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not any(tensor.is_inference() for tensor in found)


def test_blocks_of_two_threads_share_the_process_and_leave_it_as_it_was() -> None:
    """The block of the thread that ends last puts back what the first one found."""
    first, second = default_torch_state(), default_torch_state()
    with STATES["default dtype"]():
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.bfloat16
    assert next(model().parameters()).dtype == torch.float32
