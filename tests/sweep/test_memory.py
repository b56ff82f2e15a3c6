"""Cells that do not fit: seen under real limits, measured in smaller chunks, or recorded while the others go on."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.errors import InputError, InsufficientMemoryError
from ostools.ground.out_of_memory import is_out_of_memory, smaller_chunks
from ostools.measure.passes import last_tokens
from ostools.sweep import results, run, sweep_of
from ostools.sweep.cells import cells_of
from ostools.sweep.measurements import measure
from ostools.sweep.store import Store
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model

pytestmark = pytest.mark.slow  # peaks, in processes of their own and under limits
KINDS = ["evaluate", "collapse", "sensitivity", "bounds"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="the limits of Linux")


def test_memory_that_ran_out_is_told_from_what_only_speaks_of_it() -> None:
    allocator = (
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    )
    lacked: list[Exception] = [MemoryError(), InsufficientMemoryError("found 1 GiB"), torch.OutOfMemoryError("CUDA")]
    lacked += map(RuntimeError, (allocator, "std::bad_alloc", "DefaultCPUAllocator: not enough memory"))
    lacked.append(OSError(errno.ENOMEM, "Cannot allocate memory"))
    with pytest.raises(RuntimeError) as huge:
        torch.empty(1 << 60)
    for error in (*lacked, huge.value):
        assert is_out_of_memory(error)
        wrapped = InputError("expected weights that fit")
        wrapped.__cause__ = error
        assert is_out_of_memory(wrapped)
    for error in (InputError("found 'out of memory'"), OSError(errno.ENOENT, "x"), RuntimeError("shape"), ValueError()):
        assert not is_out_of_memory(error)


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("gemma", n_layers=1)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_decide_no_number(model: TransformerBridge, kind: str) -> None:
    variants: dict[str, Any] = {"name": "bounds", "variants": ["local", "windowed(1)", "theorem-5.1"]}
    # Path sums go through one prompt after another, each in many chunks: one length says what three say.
    asked: dict[str, Any] = {"tasks": "count-ones", "lengths": [9] if kind == "bounds" else [3, 4, 9]}
    asked |= {"mitigations": ["none", "sliding-window:window=16,sinks=1"]}
    cells = cells_of(sweep_of({**asked, "measurements": variants if kind == "bounds" else kind}))
    for cell in cells:
        whole, _ = measure(model, cell)
        with smaller_chunks(1 / 256):
            parts, provenance = measure(model, cell)
        # The noise of a collapse is made of last bits: it moves with whatever is computed beside it, as docs/sweeps.md says.
        moving = [name for name in whole if name == "seconds" or name.endswith("noise")]
        pd.testing.assert_frame_equal(parts.drop(columns=moving), whole.drop(columns=moving), rtol=2e-4, atol=1e-5)
    if kind == "evaluate":
        assert provenance.parameters["batch_tokens"] == 16


@pytest.mark.parametrize("family", TEXT_FAMILIES)
@pytest.mark.parametrize("task", ["figure-5a", "count-ones"])
def test_a_long_prompt_goes_through_in_pieces(family: Family, task: str) -> None:
    """Windows, soft-caps and positions are those of the whole prompt: in float64, to its rounding."""
    model = tiny_model(family, scale=2.0)
    settings: Any = {"lengths": [3, 20, 36], "dtypes": ["float64"]}
    whole = ost.collapse(model, task, **settings)
    with smaller_chunks(1 / 8), mock.patch.object(last_tokens, "_pass", wraps=last_tokens._pass) as passes:
        pieces = ost.collapse(model, task, **settings)
        of_trunk = [call for call in passes.call_args_list if "past_key_values" in call.kwargs]
        widths = [len(call.args[1][0]) for call in of_trunk]
    assert pieces.provenance.parameters["route"] == whole.provenance.parameters["route"] != "loop"
    assert len(widths) >= 8
    if task == "figure-5a":  # the branches of the other go through whole
        assert max(widths) <= max(whole.frame["tokens"]) // 8 + 1
    numbers = ["mean", "minimum", "maximum", "relative"]
    np.testing.assert_allclose(pieces.frame[numbers], whole.frame[numbers], rtol=1e-6, atol=1e-9)


@linux
def test_more_than_is_free_is_an_error_and_not_the_end_of_the_process() -> None:
    """In a process of its own: where the error does not come, the machine's memory would be gone."""
    code = """
import resource, torch
from ostools.ground import memory
from ostools.ground import out_of_memory
out_of_memory.free_memory = lambda: memory.Free(300 << 20, "")
before = resource.getrlimit(resource.RLIMIT_DATA)
with out_of_memory.held_to_what_is_free("cpu"):
    torch.ones(50 << 18)
    try:
        torch.ones(400 << 18)
    except RuntimeError as error:
        assert out_of_memory.is_out_of_memory(error), error
        print("refused")
assert resource.getrlimit(resource.RLIMIT_DATA) == before
torch.ones(400 << 18)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


LIMITED = """
import json, resource, sys, psutil, torch
torch.set_num_threads(1)
from ostools.cli import main
from ostools.sweep import run, sweep_of
first, second, folder, file = json.loads(sys.argv[1])
run(sweep_of({**first, "models": "embedded", "lengths": [2]}), folder + "/warm")
run(sweep_of(first), folder + "/whole")
def limit(bytes):
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + bytes, resource.RLIM_INFINITY))
limit(280 << 20)
run(sweep_of(first), folder + "/limited")
limit(200 << 20)
sys.argv = ["ostools", "sweep", "run", file, "--out", folder + "/lacking"]
main()
"""


@linux
def test_under_a_real_limit(tmp_path: Path) -> None:
    """Some 470 MiB of scores a pass fit into 280 MiB in parts; 700 MiB a prompt do not fit into 200, and the others go on."""
    from tests.checkpoints import write_checkpoint

    sizes: Any = {"d_model": 64, "n_layers": 1, "n_heads": 32, "n_key_value_heads": 1, "d_head": 8, "context": 2048}
    # A window that slides: with one, a beginning that prompts share is read for each, not once for all.
    wide = str(write_checkpoint(tmp_path / "wide", "mistral", **sizes))
    small = str(write_checkpoint(tmp_path / "small", "gemma", n_layers=1, context=2048))
    first = {"models": wide, "tasks": "count-ones", "lengths": "290:298", "device": "cpu"}
    first |= {"measurements": {"name": "evaluate", "max_new_tokens": 2}}
    second = {**first, "models": [wide, small], "lengths": 1500}
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(second))
    arguments = json.dumps([first, second, str(tmp_path), str(file)])
    done = subprocess.run([sys.executable, "-c", LIMITED, arguments], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    whole, limited = (results(tmp_path / name).drop(columns="seconds") for name in ("whole", "limited"))
    assert len(whole) == 9
    pd.testing.assert_frame_equal(limited, whole, rtol=1e-4, atol=1e-4)
    sources: list[Any] = [pd.read_parquet(path).attrs["ostools"] for path in (tmp_path / "limited" / "cells").iterdir()]
    assert all(source["provenance"]["parameters"]["chunk_share"] < 1 for source in sources)
    assert sources
    assert set(results(tmp_path / "lacking")["model"]) == {small}
    (failure,) = Store(tmp_path / "lacking").failures()
    assert failure.error.startswith("out of memory while it was measured: forecast ")
    assert "free under RLIMIT_AS" in failure.error
    assert "Traceback" not in done.stderr
    assert run(sweep_of(second), tmp_path / "lacking", retry_failed=True).failed == ()
