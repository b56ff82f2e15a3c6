"""What a GPU gives: parity with the CPU, and how fast profiles, collapse and answers are at the
sizes that people use.

    python -m benchmarks.gpu --out DIR
    python -m benchmarks.gpu --out DIR --device cpu --tiny      # the same parts on a tiny shape, to try them

Models have random weights in bfloat16 and are made on the device; no file of weights is read or
written, but for a tiny one. Every part is one file, DIR/NAME.json, written when the part ends: a
run that is cut off keeps what it has. A part that fails says why in its file, and the others go on.
What does not begin within `--seconds` is not measured, and that is said. The last part, the exact
profile of gemma-7b's shape, ends at that limit too, and then says how much of it was done.
`benchmarks/gpu.sh` runs this on a bare machine. It has met no GPU yet: no figures of one are
committed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from benchmarks.shapes import random_model, write_shape
from ostools.ground.arguments import LINEARISATIONS
from ostools.hooks import HookError
from ostools.measure.answers.answers import answers
from ostools.models.shape import Shape, resolve_device
from ostools.results import Provenance, write_atomically

Values = dict[str, Any]
LIMITS = {"float32": 1e-4, "bfloat16": 3e-2}
"""Largest difference of a GPU from the CPU, relative to the largest value. Jacobians are computed
in float32 in both."""
LINES = "  {0:28} {1}"


@dataclass(frozen=True)
class Sizes:
    """What is measured: shapes, tokens of a prompt, largest length of collapse, prompts and new
    tokens of the answers, and the side of the matrices whose product gives the rate."""

    shapes: tuple[str, ...] = ("gemma-3-270m", "gemma-2b", "gemma-7b")
    tokens: int = 200
    longest: int = 512
    prompts: int = 8
    new_tokens: int = 48
    side: int = 8192


TINY = Sizes(shapes=("tiny",), tokens=12, longest=8, prompts=2, new_tokens=4, side=256)


class _TimeUpError(Exception):
    """The time is up in the middle of a profile."""


@dataclass
class Clock:
    """Seconds since the start, and those that the whole run may take."""

    limit: float
    start: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        return self.limit - (time.perf_counter() - self.start)


def product_rate(device: torch.device, dtype: torch.dtype, side: int, rounds: int = 5) -> float:
    """Operations a second of a product of square matrices: the best of a few."""
    matrix, seconds = torch.rand(side, side, device=device, dtype=dtype), []
    for _ in range(rounds + 1):  # the first one waits until the library has chosen its kernel
        _synchronize(device)
        start = time.perf_counter()
        _ = matrix @ matrix
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2.0 * side**3 / min(seconds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device, side: int) -> Values:
    """Names, versions, and the rates of products, with float32 products in float32."""
    rates = {
        name: product_rate(device, getattr(torch, name), side) for name in ("float32", "bfloat16")
    }
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": name,
        "versions": Provenance.without_model().versions,
        "operations_per_second": rates,
    }


def _tiny_values(model: TransformerBridge) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Every route of every kind of measurement, on one prompt."""
    prompt = ost.Prompt.from_ids(model, list(range(10, 22)))

    def norms(linearisation: Any, method: Any) -> np.ndarray:
        result = ost.sensitivity(model, prompt, linearisations=[linearisation], method=method)
        return result.frame["frobenius_norm"].to_numpy(dtype=float)

    def logits() -> np.ndarray:
        with torch.no_grad():
            return (
                model(prompt.ids[None].to(next(model.parameters()).device))[0, -1]
                .double()
                .cpu()
                .numpy()
            )

    def distances() -> np.ndarray:
        table: Any = ost.collapse(
            model, "figure-5a", lengths=range(1, 9), dtypes=["float32", "bfloat16"]
        ).frame
        return table["float64_distance"].to_numpy(dtype=float)

    yield "logits", logits
    for linearisation in LINEARISATIONS:
        yield f"exact, {linearisation}", lambda name=linearisation: norms(name, "exact")
    yield "sketch, full", lambda: norms("full", "sketch")
    for variant in ("local", "theorem-5.1"):
        yield (
            variant,
            lambda name=variant: (
                ost.bounds(model, prompt, variants=name).frame["value"].to_numpy(dtype=float)
            ),
        )
    yield (
        "hops",
        lambda: ost.measure.hops(model, prompt).frame.select_dtypes("number").to_numpy(dtype=float),
    )
    yield "collapse", distances
    yield "answer", lambda: np.array(answers(model, [prompt], max_new_tokens=8)[0].ids, dtype=float)


def parity(directory: Path, device: torch.device, dtype: str) -> Values:
    """Largest difference from the CPU of each route, relative to its largest value there. What both
    refuse in the same words agrees; what one of them refuses does not."""
    rows: list[Values] = []
    for route in ("auto", "generic"):
        there, here = (
            dict(_tiny_values(ost.load_model(directory, dtype=dtype, device=where, route=route)))
            for where in (str(device), "cpu")
        )
        for name, measure in here.items():
            known, found = _value_or_refusal(measure), _value_or_refusal(there[name])
            if isinstance(known, str) or isinstance(found, str):
                rows.append(
                    {
                        "route": route,
                        "what": name,
                        "refused": str(known if isinstance(known, str) else found),
                        "agrees": isinstance(known, str)
                        and isinstance(found, str)
                        and known == found,
                    }
                )
                continue
            difference = float(np.abs(found - known).max() / max(np.abs(known).max(), 1e-300))
            limit = LIMITS[dtype if name == "logits" else "float32"]
            rows.append(
                {
                    "route": route,
                    "what": name,
                    "difference": difference,
                    "agrees": difference <= limit,
                }
            )
    return {"differ": [row for row in rows if not row["agrees"]], "rows": rows}


def _value_or_refusal(measure: Callable[[], np.ndarray]) -> np.ndarray | str:
    try:
        return measure()
    except (ost.InputError, HookError) as error:
        return str(error)


def exact_profile(
    model: TransformerBridge, prompt: ost.Prompt, rate: float, clock: Clock
) -> Values:
    """The exact profile until the time is up, and its share of the product rate.

    Numerator: a product and a sum for every weight of a block, token and row; in the last block at
    the last token alone. What else is computed counts in the time. `done`: the part of the steps
    that were taken; a step carries some rows through one block."""
    shape = Shape.of(model)
    operations = (
        2.0 * ((shape.n_layers - 1) * len(prompt.ids) + 1) * shape.block_parameters * shape.d_model
    )
    start, reached = time.perf_counter(), [(0.0, 0.0)]

    def tick(done: float, total: float) -> None:
        reached.append((time.perf_counter() - start, done / total))
        if clock.left < 0:
            raise _TimeUpError

    whole = True
    try:
        ost.sensitivity(model, prompt, linearisations=["full"], method="exact", progress=tick)
    except _TimeUpError:
        whole = False
    seconds, (row_seconds, done) = time.perf_counter() - start, reached[-1]
    share = operations * done / rate
    return {
        "done": done,
        "whole": whole,
        "share_of_float32_rate": share / seconds if whole else None,
        "share_of_float32_rate_rows": share / row_seconds if row_seconds else None,
        "norms_and_checks_seconds": seconds - row_seconds,
    }


def shape_parts(
    model: TransformerBridge, sizes: Sizes, rate: float, clock: Clock
) -> Iterator[tuple[str, Callable[[], Values]]]:
    """The parts of one shape, the dearest last."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 200, (sizes.prompts, sizes.tokens), generator=generator).tolist()
    prompts = [ost.Prompt.from_ids(model, row) for row in ids]

    def sketch() -> Values:
        result = ost.sensitivity(model, prompts[0], linearisations=["full"], method="sketch")
        run = result.provenance.parameters["runs"]["full"]
        return {"half_width": run["half_width"], "plan": run["plan"]}

    def distances() -> Values:
        ost.collapse(model, "figure-5a", lengths=range(1, sizes.longest + 1), dtypes=["bfloat16"])
        return {"longest": sizes.longest}

    def answer() -> Values:
        start = time.perf_counter()
        made = answers(model, prompts, max_new_tokens=sizes.new_tokens)
        seconds, tokens = time.perf_counter() - start, sum(len(one.ids) for one in made)
        return {"answers_per_second": len(made) / seconds, "tokens_per_second": tokens / seconds}

    def first() -> Values:
        short = ost.Prompt.from_ids(model, ids[0][:4])
        ost.sensitivity(model, short, linearisations=["full"], method="sketch")
        return {}

    yield "first-pass", first  # waits until kernels are chosen
    yield "sketch", sketch
    yield "answers", answer
    yield "collapse", distances
    yield "exact", lambda: exact_profile(model, prompts[0], rate, clock)


def measured(what: Callable[[], Values], device: torch.device) -> Values:
    """Seconds, peak of the device's memory, and what the part found, or why it failed."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    try:
        values = what()
    except Exception as error:  # of any kind: the other parts go on
        values = {"failed": f"{type(error).__name__}: {error}"}
    _synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {"seconds": time.perf_counter() - start, "peak_gib": peak, **values}


def run(
    out: Path, device: torch.device, sizes: Sizes, seconds: float
) -> Iterator[tuple[str, Values]]:
    """Every part: its name and values, written into `out` by then."""
    clock = Clock(seconds)

    def part(name: str, what: Callable[[], Values]) -> tuple[str, Values]:
        values = (
            measured(what, device) if clock.left > 0 else {"skipped": f"{seconds:g} s were over"}
        )
        write_atomically(
            out / f"{name}.json", lambda file: file.write_text(json.dumps(values, indent=1))
        )
        return name, values

    out.mkdir(parents=True, exist_ok=True)
    yield (machine_part := part("machine", lambda: machine(device, sizes.side)))
    rate = machine_part[1].get("operations_per_second", {}).get("float32", float("nan"))
    with tempfile.TemporaryDirectory(prefix="ostools-") as folder:
        tiny = write_shape("tiny", Path(folder) / "tiny")
        for dtype in LIMITS:
            yield part(f"parity-{dtype}", lambda dtype=dtype: parity(tiny, device, dtype))
    for name in sizes.shapes:
        models: list[TransformerBridge] = []

        def build(name: str = name, models: list[TransformerBridge] = models) -> Values:
            models.append(random_model(name, device))
            return {"parameters": Shape.of(models[0]).parameters}

        yield part(f"{name}-model", build)
        for model in models:
            for kind, what in shape_parts(model, sizes, rate, clock):
                yield part(f"{name}-{kind}", what)


def line(values: Values) -> str:
    """A part in one line."""
    shown = {
        name: value for name, value in values.items() if name not in ("rows", "versions", "plan")
    }
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shown.items()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a directory for the JSON files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny shape and short prompts, to try the script"
    )
    parser.add_argument("--seconds", type=float, default=330.0, help="no part begins later")
    given = parser.parse_args(arguments)
    try:
        device = resolve_device(given.device)
    except ost.InputError as error:
        parser.error(str(error))
    for name, values in run(given.out, device, TINY if given.tiny else Sizes(), given.seconds):
        print(LINES.format(name, line(values)), flush=True)


if __name__ == "__main__":
    main()
