"""A model in several places: what the same model gives in one, to the bit, out of weights that are
not held.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ostools as ost
from benchmarks.shapes import write_shape
from ostools.ground.errors import InputError
from ostools.models import describe, lazy_cast, load_model
from ostools.models.files import offload
from ostools.models.files.offload import brought, first_fit
from ostools.models.lazy_cast import LazyCast
from tests.checkpoints import FAMILIES, Family, write_checkpoint
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 30), generator=torch.Generator().manual_seed(3))


def on_disk(model: Any) -> list[str]:
    return [
        name
        for name, weight in model.original_model.named_parameters()
        if isinstance(weight, LazyCast)
    ]


def test_a_large_table_is_read_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, as a view reads it, its sums would go in another order."""
    whole = load_model(write_checkpoint(tmp_path, "llama", d_model=340), device="cpu")
    parts = load_model(tmp_path, device="cpu", device_map="disk")
    monkeypatch.setattr(lazy_cast, "BLOCK", 340 * 7 * 4)
    assert torch.equal(parts(IDS), whole(IDS))


@pytest.mark.parametrize(("stored", "dtype"), [("float32", "bfloat16"), ("bfloat16", "float64")])
def test_what_is_on_disk_is_read_in_the_dtype_that_was_asked_for(
    stored: str, dtype: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "gemma2", dtype=getattr(torch, stored))
    whole = load_model(tmp_path, dtype=dtype, device="cpu")
    parts = load_model(tmp_path, dtype=dtype, device="cpu", device_map="disk")
    assert torch.equal(parts(IDS), whole(IDS))
    assert replace(describe(parts), device_map=None) == describe(whole)


MEASUREMENTS: list[Any] = [
    lambda model: ost.sensitivity(model, "abc defg", linearisations=("full",), layers="all"),
    lambda model: ost.collapse(
        model, "figure-5a", lengths=(2, 5), dtypes=("bfloat16", "int8-weights")
    ),
    lambda model: ost.evaluate(model, "copy-last", lengths=(4,), max_new_tokens=4),
]


@pytest.mark.parametrize(
    ("family", "measure"),
    quick(product(("gpt2", "gemma3", "mistral"), range(3)), ("gpt2", 0), ("gpt2", 2)),
)
def test_every_measurement_gives_the_same_bits(
    family: Family, measure: int, tmp_path: Path
) -> None:
    whole = load_model(write_checkpoint(tmp_path, family), device="cpu")
    parts = load_model(tmp_path, device="cpu", device_map="disk")
    found, expected = MEASUREMENTS[measure](parts), MEASUREMENTS[measure](whole)
    timed = [name for name in found.frame if name == "seconds"]
    assert found.frame.drop(columns=timed).equals(expected.frame.drop(columns=timed))
    assert found.provenance.model["device_map"] == {"": "disk"}
    assert expected.provenance.model["device_map"] is None


@given(st.data())
def test_what_is_brought_begins_where_the_loaded_weight_begins(data: st.DataObject) -> None:
    """The same numbers and strides, and the same place in a cache line, for any view; sums then go
    in the same order.
    """
    rows, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    own = torch.randn(rows, columns)
    file = torch.empty(rows * columns + 3)[3:].view(
        rows, columns
    )  # a file's numbers begin anywhere
    file.copy_(own)
    low, high = sorted(data.draw(st.tuples(st.integers(0, columns - 1), st.integers(1, columns))))
    views: dict[str, Any] = {
        "itself": lambda w: w,
        "transposed": lambda w: w.t(),
        "columns": lambda w: w[:, low:high],
        "rows": lambda w: w[low % rows :],
        "expanded": lambda w: w[:1].expand(rows, columns),
        "nothing": lambda w: w[:0],
        "every other": lambda w: w[::2, ::3],
    }
    view = views[data.draw(st.sampled_from(sorted(views)))]
    stored = torch.from_numpy(file.numpy())  # a storage of its own, as a mapped weight has
    found, expected = brought(view(stored), torch.float32, torch.device("cpu")), view(own)
    assert torch.equal(found, expected)
    if found.numel():
        assert found.stride() == expected.stride()
        assert found.data_ptr() % 64 == expected.data_ptr() % 64
        x = torch.randn(3, found.shape[-1])
        assert torch.equal(x @ found.t(), x @ expected.t())


def test_no_operation_reads_a_weight_off_the_device_that_computes() -> None:
    """A second device, faked by the one that holds no numbers: torch refuses to mix it with
    another.
    """
    there = torch.device("meta")
    stored = torch.randn(12, 8)
    weight = LazyCast(
        lambda part: part.to(there), (stored,), torch.float32, device=there, one_piece=True
    )  # pyright: ignore[reportCallIssue]
    x, ids = torch.zeros(2, 8, device=there), torch.zeros(3, dtype=torch.long)
    results = (
        torch.nn.functional.linear(x, weight),
        torch.nn.functional.embedding(ids, weight),
        weight * 2,
        weight.t()[:, 1:] + 1,
        torch.cat(weight.split(4)),
    )
    assert weight.device == there
    assert all(result.device == there for result in results)


PARTS = [("embed", 30), ("block 0", 10), ("block 1", 10), ("norm", 1)]


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        ({"cpu": 51}, ["cpu", "cpu", "cpu", "cpu"]),
        ({"cpu": 50}, ["cpu", "cpu", "cpu", "disk"]),
        ({"cpu": 29}, ["disk"] * 4),
        ({"cuda:0": 45, "cuda:1": 9, "cpu": 10}, ["cuda:0", "cuda:0", "cpu", "disk"]),
    ],
)
def test_parts_go_in_their_order_to_the_nearest_place_with_room(
    rooms: dict[str, int], expected: list[str]
) -> None:
    assert list(first_fit(PARTS, rooms).values()) == expected


@pytest.mark.parametrize("family", quick(FAMILIES, "gemma3", "gpt2"))
def test_auto_leaves_on_disk_what_has_no_room(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_model(write_checkpoint(tmp_path, family), device="cpu")
    assert not on_disk(load_model(tmp_path, device="cpu", device_map="auto"))
    room = int(0.8 * 4 * describe(whole).n_parameters / offload.SHARE)  # for all but the last part
    monkeypatch.setattr(offload, "available_memory", lambda device: room)
    parts = load_model(tmp_path, device="cpu", device_map="auto")
    assert on_disk(parts)
    assert not any(".0." in name for name in on_disk(parts))
    assert torch.equal(parts(IDS), whole(IDS))


def test_a_weight_on_disk_is_not_written_to(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma")
    before = (tmp_path / "model.safetensors").read_bytes()
    model = load_model(tmp_path, device="cpu", device_map="disk")
    weight = model.blocks[0].mlp.out.weight
    zeros = torch.zeros(weight.shape)
    writes = (
        lambda: weight.mul_(0),
        lambda: weight.data.zero_(),
        lambda: weight.__setitem__(0, 1.0),
        lambda: setattr(weight, "data", zeros),
        lambda: torch.mul(zeros, 2.0, out=weight),
        lambda: weight.squeeze().zero_(),
        lambda: weight.squeeze((0,)).zero_(),
        lambda: weight.diagonal().zero_(),
        lambda: weight.unfold(0, 2, 2).zero_(),
        lambda: weight.flatten().zero_(),
        lambda: model.original_model.to(torch.float64),
    )
    for write in writes:
        with (
            torch.no_grad(),
            pytest.raises(InputError, match="expected a weight of the model itself to write to"),
        ):
            write()
    assert (tmp_path / "model.safetensors").read_bytes() == before


_RUN = """
import sys, torch
torch.set_num_threads(1)
import ostools as ost
from ostools.models import load_model
def held():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0]) << 10
directory, placed, out = sys.argv[1:]
before = held()
model = load_model(directory, dtype="bfloat16", device="cpu", device_map=placed or None)
loaded = held() - before
start = model.input_to_embed(torch.arange(6, 22)[None])[0].detach().requires_grad_()
logits = model(start, start_at_layer=0)
(slope,) = torch.autograd.grad(logits[0, -1].logsumexp(-1), start)
ran = held() - before
torch.save({"loaded": loaded, "ran": ran, "logits": logits.detach(), "slope": slope}, out)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
def test_200_million_weights_on_disk_are_not_in_memory(tmp_path: Path) -> None:
    """400 MB of bfloat16, held whole and on disk; the numbers are the same bits."""
    directory = write_shape("200m", tmp_path / "200m")
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    found = {}
    # glibc keeps freed matrices of up to 32 MB for later ones, more or fewer by chance. A fixed
    # threshold gives them back at once, so that what is counted is what is held.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    for name, placed in {"whole": "", "disk": "disk"}.items():
        out = tmp_path / f"{name}.pt"
        command = [sys.executable, "-c", _RUN, str(directory), placed, str(out)]
        subprocess.run(command, check=True, timeout=600, env=environment)
        found[name] = torch.load(out)
    assert torch.equal(found["disk"]["logits"], found["whole"]["logits"])
    assert torch.equal(found["disk"]["slope"], found["whole"]["slope"])
    made = 64 << 20  # matrices that are being read, and libraries
    for name, held in {"whole": size, "disk": 0}.items():
        assert found[name]["loaded"] < held + made, name
        assert found[name]["ran"] < held + made, name
    assert found["whole"]["loaded"] > 0.95 * size
    shutil.rmtree(directory)
