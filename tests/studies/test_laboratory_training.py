"""The laboratory's training: its arithmetic, its prompts, and that one config gives the same bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ostools.ground.errors import InputError
from studies.laboratory.config import LabConfig, read_config
from studies.laboratory.prompts import BOS, EOS, LETTERS, VOCABULARY, LabTask
from studies.laboratory.training import WEIGHTS, AddedUp, batch_at, start, train_lab, train_step

pytestmark = pytest.mark.slow
TINY = LabConfig(
    n_layers=1,
    d_model=16,
    n_heads=2,
    d_mlp=16,
    longest=5,
    steps=12,
    batch=8,
    warmup_steps=2,
    decay_steps=4,
    context=32,
)


@pytest.mark.parametrize("positions", ["rope", "learned", "alibi"])
def test_in_bfloat16_every_tensor_that_leaves_a_module_is_one_and_the_master_weights_are_float32(
    positions: str,
) -> None:
    config = replace(TINY, positions=positions, dtype="bfloat16", gradient_clip=1e9)
    model, optimiser = start(config)
    left: dict[str, Any] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, out, name=name: left.update({name: out}))
    train_step(config, 0, model, optimiser)
    assert {name for name, _ in model.named_modules()} - {"model.layers"} == set(left)
    for out in left.values():
        parts = out if isinstance(out, tuple) else out.values() if isinstance(out, dict) else [out]
        assert {part.dtype for part in parts if part is not None} == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    gradients: list[Any] = [weight.grad for weight in model.parameters()]
    assert all(torch.equal(one, one.bfloat16().float()) for one in gradients)
    assert not all(torch.equal(weight, weight.bfloat16().float()) for weight in model.parameters())


def test_a_product_is_added_up_in_float32_and_rounded_once_forwards_and_backwards() -> None:
    draw = torch.Generator().manual_seed(0)
    # Whole numbers of at most 8 bits: every sum of 200 products is exact in float32, in whatever
    # order.
    rows, columns = (
        torch.randint(-200, 200, (50, 200), generator=draw).bfloat16().requires_grad_()
        for _ in range(2)
    )
    with AddedUp():
        found = torch.nn.functional.linear(rows, columns)
    assert torch.equal(found, (rows.double() @ columns.double().T).bfloat16())
    upstream = torch.randint(-200, 200, found.shape, generator=draw).bfloat16()
    (gradient,) = torch.autograd.grad(found, columns, upstream)
    assert torch.equal(gradient, (upstream.double().T @ rows.double()).bfloat16())


def test_a_finished_model_is_left_as_it_is_and_one_seed_gives_the_same_bits(tmp_path: Path) -> None:
    wanted = {"first": TINY, "again": TINY, "other": replace(TINY, seed=1)}
    for name, config in wanted.items():
        train_lab(config, tmp_path / name)
    first, again, other = ((tmp_path / name / WEIGHTS).read_bytes() for name in wanted)
    assert first == again != other
    before = (tmp_path / "first" / WEIGHTS).stat().st_mtime_ns
    train_lab(TINY, tmp_path / "first")
    assert (tmp_path / "first" / WEIGHTS).stat().st_mtime_ns == before
    assert read_config(tmp_path / "first") == TINY
    with pytest.raises(InputError, match="is of another config"):
        train_lab(replace(TINY, n_layers=2), tmp_path / "first")


def test_every_training_prompt_says_its_question_and_its_right_answer() -> None:
    letters = {letter: question for question, letter in LETTERS.items()}
    for step in range(20):
        ids, answered = batch_at(TINY, step)
        for row, marks in zip(ids, answered, strict=True):
            text = [VOCABULARY[index] for index in row]
            end = text.index(EOS)
            (at,) = (place for place, token in enumerate(text) if token in letters)
            assert text[0] == BOS
            assert at <= TINY.longest + 1
            assert "".join(text[at + 1 : end]) == LabTask(letters[text[at]]).key(text[1:at])
            assert np.flatnonzero(marks).tolist() == list(range(at + 1, end + 1))
            assert set(text[end + 1 :]) <= {"<pad>"}
