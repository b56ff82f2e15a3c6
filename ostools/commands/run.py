"""The commands: load, measure, then save to a file or show on the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.options import parse_lengths
from ostools.results import Result, checked_output

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.measure import Collapse, PathSum, Sensitivity

PATH_SUMS = ("proof", "uniform", "local", "second-moment")
DTYPES = ("float32", "bfloat16", "float16")
SMALL = 20_000_000
"""Below this many parameters one thread computes as fast as several."""
SHOWN = 16
"""How many lengths of a collapse curve a terminal shows; a file gets all."""


def report(model: str, prompt: str | None, out: Path, device: str, dtype: str) -> None:
    """`ostools report`."""
    checked_output(out, (".html",))
    loaded = _load(model, device, dtype)
    with output.progress("measuring") as progress:
        written = ost.report(loaded, prompt=prompt, out=out, progress=progress)
    output.print_text([f"wrote {written}"])


def sensitivity(
    model: str, prompt: str, linearisations: Sequence[str] | None, out: Path | None, device: str, dtype: str
) -> None:
    """`ostools sensitivity`."""
    from ostools.measure.prompts import checked_names
    from ostools.measure.sensitivity import LINEARISATIONS

    _check(out, prompt)
    names = checked_names("linearisation", linearisations or ("full", "frozen"), LINEARISATIONS)
    loaded = _load(model, device, dtype)
    with output.progress("differentiating") as progress:
        result = ost.sensitivity(loaded, prompt, linearisations=names, progress=progress)
    if not _saved(result, out):
        _show_sensitivity(result)


def path_sum(
    model: str, prompt: str, variants: Sequence[str] | None, out: Path | None, device: str, dtype: str
) -> None:
    """`ostools path-sum`."""
    from ostools.measure.prompts import checked_names
    from ostools.measure.variants import VARIANTS

    _check(out, prompt)
    names = checked_names("variant", variants or PATH_SUMS, VARIANTS)
    loaded = _load(model, device, dtype)
    with output.progress("folding the blocks") as progress:
        result = ost.path_sum(loaded, prompt, variants=names, progress=progress)
    if not _saved(result, out):
        _show_path_sum(result)


def collapse(
    model: str,
    task: str,
    lengths: str,
    dtypes: Sequence[str] | None,
    seeds: Sequence[int] | None,
    out: Path | None,
    device: str,
) -> None:
    """`ostools collapse`."""
    _check(out)
    wanted = parse_lengths(lengths)
    chosen = ost.tasks.get(task)
    loaded = _load(model, device, "float32")
    with output.progress("comparing pairs") as progress:
        result = ost.collapse(
            loaded,
            chosen,
            lengths=wanted,
            dtypes=tuple(dtypes or DTYPES),
            seeds=tuple(seeds or (0,)),
            progress=progress,
        )
    if not _saved(result, out):
        _show_collapse(result)


def models() -> None:
    """`ostools models`."""
    import json

    from ostools.models.families import FAMILIES
    from ostools.models.sources import EMBEDDED_DIRECTORY

    card_file = EMBEDDED_DIRECTORY / "card.json"
    lines = ["embedded: not in this installation"]
    if card_file.is_file():
        card: dict[str, Any] = json.loads(card_file.read_text(encoding="utf-8"))
        trained = ", ".join(f"{task} to {longest}" for task, longest in card["trained_lengths"].items())
        lines = [
            f"embedded: {card['architecture']}, {card['parameters']:,} parameters, float32, in this package; the default.",
            f"  Trained, by items of the sequence, on: {trained}.",
        ]
    output.print_text(
        [
            *lines,
            "a directory: --model ./my-model, with config.json, *.safetensors and a tokenizer.",
            "a hub id: --model google/gemma-7b; a gated one needs HF_TOKEN. What is in the local cache needs no network.",
            f"Architectures: {', '.join(sorted({family.architecture for family in FAMILIES.values()}))}.",
        ]
    )


def _check(out: Path | None, prompt: str | None = None) -> None:
    """What can be refused before a model is loaded."""
    if out is not None:
        checked_output(out)
    if prompt == "":
        raise ost.InputError("--prompt: expected text, found nothing; give at least one character")


def _load(model: str, device: str, dtype: str) -> TransformerBridge:
    import torch

    with output.progress("loading the model"):
        loaded = ost.load_model(model, dtype=dtype, device=device)
    # Matrices this small are not worth sharing out: on busy cores two threads wait for each other and take far longer.
    if "OMP_NUM_THREADS" not in os.environ and sum(weight.numel() for weight in loaded.parameters()) < SMALL:
        torch.set_num_threads(1)
    return loaded


def _saved(result: Result, out: Path | None) -> bool:
    if out is None:
        return False
    output.print_text([f"wrote {result.save(out)}"])
    return True


def _show_sensitivity(result: Sensitivity) -> None:
    from ostools.reporting import findings

    columns = ["operator_norm", "frobenius_norm"]
    table = result.frame.pivot(index=["position", "token"], columns="linearisation", values=columns)
    names = [f"{linearisation} {str(norm).removesuffix('_norm')}" for norm, linearisation in table.columns]
    _show_tokens("Measured sensitivity of the last representation", names, table)
    output.print_text(["", *findings.sensitivity_findings(result)])


def _show_path_sum(result: PathSum) -> None:
    from ostools.reporting.theme import KINDS

    table = result.frame.pivot(index=["position", "token"], columns=["variant", "kind", "norm"], values="value")
    table = table[result.frame[["variant", "kind", "norm"]].drop_duplicates().itertuples(index=False, name=None)]
    names = [str(variant) for variant, _, _ in table.columns]
    _show_tokens("Path sums from each token to the last", names, table)
    norms = {"operator": "operator", "frobenius": "Frobenius"}
    notes = [f"{variant}: {KINDS[kind]}, beside the frozen {norms[norm]} norm" for variant, kind, norm in table.columns]
    output.print_text(["", *notes])


def _show_tokens(title: str, names: Sequence[str], table: Any) -> None:
    from ostools.reporting.theme import display_token

    rows = (
        (int(position), display_token(str(token)), *map(float, values))
        for (position, token), values in zip(table.index, table.to_numpy(), strict=True)
    )
    output.stdout().print(output.table(title, ["position", "token", *names], rows, left=2))


def _show_collapse(result: Collapse) -> None:
    from ostools.reporting import findings

    frame: Any = result.frame
    frame = frame[(frame["site"] == "y") & (frame["per"] == "vector") & (frame["norm"] == "l2")]
    lengths = sorted(set(frame["length"]))
    shown = sorted({lengths[round(i * (len(lengths) - 1) / (SHOWN - 1))] for i in range(SHOWN)})
    table = frame[frame["length"].isin(shown)].pivot(
        index=["pair", "seed", "length"], columns="dtype", values=["mean", "noise", "machine_line"]
    )
    dtypes = list(dict.fromkeys(frame["dtype"]))
    columns = [(value, dtype) for dtype in dtypes for value in ("mean", "noise", "machine_line")]
    words = {"mean": "", "noise": " noise", "machine_line": " step"}
    rows = ((*map(str, key), *map(float, row)) for key, row in zip(table.index, table[columns].to_numpy(), strict=True))
    part = f", {len(shown)} of {len(lengths)} lengths" if len(shown) < len(lengths) else ""
    title = f"L2 distance at y, {frame['task'].iloc[0]}{part}; rounding noise and one representable step beside it"
    names = ["pair", "seed", "n", *(f"{dtype}{words[value]}" for value, dtype in columns)]
    output.stdout().print(output.table(title, names, rows))
    trained = result.provenance.model.get("trained_lengths")
    output.print_text(["", *findings.collapse_findings(result, trained)])
