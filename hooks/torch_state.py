"""Torch's settings at their defaults, so that no setting of the caller's program changes a number.

`torch.autocast` around a call would compute float32 rows in bfloat16. A default dtype that an
exception left behind would turn up in every new tensor. Inside the block each of these is what a
fresh process has, and afterwards exactly what it was:

- of this thread: autocast on any device, gradients, inference mode, the default device;
- of the whole process: the default dtype, deterministic algorithms, in which precision float32
  matrices are multiplied, and whether sums of 16-bit products may be rounded on the way.

CPU kernels and random seeds are left alone: the first are in the provenance, and no measurement
draws from torch's global generator. So are threads, but for small models (`enough_threads`).
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ostools.ground import TransformerBridge

SMALL = 20_000_000
"""Below this many parameters one thread computes as fast as several."""
_DEVICES = ("cpu", "cuda", "mps", "xpu")
_REDUCED = {
    "allow_fp16_reduced_precision_reduction": True,
    "allow_bf16_reduced_precision_reduction": True,
    "allow_fp16_accumulation": False,
}
"""Settings of 16-bit products on a GPU, with torch's defaults."""


@contextmanager
def default_torch_state() -> Iterator[None]:
    """Run the block under torch's default settings; see above for which. Blocks nest, also across
    threads.
    """
    with ExitStack() as stack:
        stack.enter_context(_process_at_defaults())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


_LOCK = threading.RLock()  # the garbage collector may end a block while another begins
_OPEN: list[ExitStack] = []
"""What undoes the changes that each open block made to settings that all threads share: the first
block changes them, and whichever is the last to end puts them back.
"""


@contextmanager
def _process_at_defaults() -> Iterator[None]:
    try:
        with _LOCK:
            _OPEN.append(ExitStack())
            if len(_OPEN) == 1:
                _set_defaults(_OPEN[0])
        yield
    finally:
        with _LOCK:
            _OPEN.pop().close()


def _set_defaults(undo: ExitStack) -> None:
    """Set torch's defaults; `undo` puts the settings of before back."""
    undo.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    enabled = torch.are_deterministic_algorithms_enabled()
    undo.callback(torch.use_deterministic_algorithms, enabled, warn_only=warn_only)
    torch.use_deterministic_algorithms(False)
    undo.enter_context(float32_products())
    matmul = torch.backends.cuda.matmul
    for name, default in _REDUCED.items():
        undo.callback(setattr, matmul, name, getattr(matmul, name))
        setattr(matmul, name, default)


def _own_precision(place: Any) -> str:
    """Setting of this place itself; "none" where it follows torch's setting for all places."""
    effective = place.fp32_precision
    place.fp32_precision = "none"
    own_setting = "none" if place.fp32_precision == effective else effective
    place.fp32_precision = own_setting
    return own_setting


@contextmanager
def float32_products() -> Iterator[None]:
    """Within the block, products of float32 matrices are not rounded to fewer bits first, on a GPU
    or a CPU.

    By torch's present setting: the older `allow_tf32` raises where somebody has used this one. A
    CPU rounds them too where it can and somebody called `torch.set_float32_matmul_precision`.
    """
    cpu: Any = torch.backends.mkldnn
    places = (torch.backends.cuda.matmul, cpu.matmul)
    before = [_own_precision(place) for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was


@contextmanager
def enough_threads(models: Iterable[TransformerBridge]) -> Iterator[None]:
    """One thread of torch within the block, where all of the models are small: on busy cores two
    threads wait for each other over so small matrices, and take far longer. As many as before where
    one is not, and where the user said how many there are to be (OMP_NUM_THREADS).
    """
    before = torch.get_num_threads()
    sizes = (sum(weight.numel() for weight in model.parameters()) for model in models)
    if "OMP_NUM_THREADS" not in os.environ and all(size < SMALL for size in sizes):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
