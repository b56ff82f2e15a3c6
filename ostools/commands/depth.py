"""The commands about sensitivity: measured, bounded, predicted, and what is read off it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_bytes, parse_layers

if TYPE_CHECKING:
    from ostools.measure import PathSum, Sensitivity

PATH_SUMS = ("proof", "uniform", "local", "second-moment")


@dataclass(frozen=True)
class Measuring:
    """The options of `ostools sensitivity`."""

    linearisations: Sequence[str] | None
    layers: str
    method: str
    relative_error: float
    seed: int
    max_memory: str | None


@dataclass(frozen=True)
class Folding:
    """The options of `ostools path-sum`."""

    variants: Sequence[str] | None
    positions: str
    mlp_norm: str
    mlp_trace: str
    max_memory: str | None


def sensitivity(model: str, prompt: str, settings: Measuring, out: Path | None, device: str, dtype: str) -> None:
    """`ostools sensitivity`."""
    from ostools.measure.jacobian.linearisations import LINEARISATIONS
    from ostools.measure.prompts import checked_names

    check(out, prompt)
    names = checked_names("linearisation", settings.linearisations or ("full", "frozen"), LINEARISATIONS)
    layers, max_memory = parse_layers(settings.layers), parse_bytes(settings.max_memory)
    loaded = load(model, device, dtype)
    with output.progress("differentiating") as progress:
        result = ost.sensitivity(
            loaded,
            prompt,
            linearisations=names,
            layers=layers,
            method=settings.method,
            relative_error=settings.relative_error,
            seed=settings.seed,
            max_memory=max_memory,
            announce=_announce,
            progress=progress,
        )
    _show(result, out, _show_sensitivity)


def path_sum(model: str, prompt: str, settings: Folding, out: Path | None, device: str, dtype: str) -> None:
    """`ostools path-sum`."""
    from ostools.measure.paths.variants import checked_variants

    check(out, prompt)
    names = checked_variants(settings.variants or PATH_SUMS)
    max_memory = parse_bytes(settings.max_memory)
    loaded = load(model, device, dtype)
    with output.progress("folding the blocks") as progress:
        result = ost.path_sum(
            loaded,
            prompt,
            variants=names,
            mlp_norm=settings.mlp_norm,
            mlp_trace=settings.mlp_trace,
            positions=settings.positions,
            max_memory=max_memory,
            announce=_announce,
            progress=progress,
        )
    _show(result, out, _show_path_sum)


def looseness(model: str, prompt: str, out: Path | None, device: str, dtype: str) -> None:
    """`ostools looseness`."""
    from ostools.measure.profiles.looseness import CHAIN

    check(out, prompt)
    loaded = load(model, device, dtype)
    with output.progress("differentiating") as progress:
        measured = ost.sensitivity(loaded, prompt, method="exact", progress=progress)
    with output.progress("folding the blocks") as progress:
        chain = ost.path_sum(loaded, prompt, variants=CHAIN, progress=progress)
    result = ost.looseness(measured, chain)
    _show(result, out, lambda result: _show_summary("Looseness by part, in decades", result.summary))


def profile(model: str, prompt: str, out: Path | None, device: str, dtype: str) -> None:
    """`ostools profile`."""
    check(out, prompt)
    loaded = load(model, device, dtype)
    with output.progress("differentiating") as progress:
        result = ost.profile(ost.sensitivity(loaded, prompt, progress=progress))
    _show(result, out, _show_profile)


def flow(model: str, prompt: str, out: Path | None, device: str, dtype: str) -> None:
    """`ostools flow`."""
    check(out, prompt)
    loaded = load(model, device, dtype)
    with output.progress("folding the blocks"):
        result = ost.flow(loaded, prompt)
    _show(result, out, lambda result: _show_summary("Strongest edges", result.frame.nlargest(20, "flow")))


def spectra(model: str, prompt: str, out: Path | None, device: str, dtype: str) -> None:
    """`ostools spectra`."""
    check(out, prompt)
    loaded = load(model, device, dtype)
    with output.progress("reading the patterns"):
        result = ost.spectra(loaded, prompt)
    _show(result, out, lambda result: _show_summary("Products of the patterns", result.depth))


def _show(result: Any, out: Path | None, show: Any) -> None:
    if not saved(result, out):
        show(result)


def _announce(forecast: str) -> None:
    """The forecast of a run, before it starts."""
    output.note(f"forecast: {forecast}")


def _show_summary(title: str, frame: Any) -> None:
    words = sum(not _is_number(dtype) for dtype in frame.dtypes)
    numbers = [name for name, dtype in frame.dtypes.items() if _is_number(dtype)]
    ordered = [name for name in frame.columns if name not in numbers] + numbers
    rows = frame[ordered].itertuples(index=False, name=None)
    output.stdout().print(output.table(title, [str(name) for name in ordered], rows, left=words))


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "if"


def _show_profile(result: Any) -> None:
    top = ["position", "token", "value", "share", "share_without_sink", "over_frozen"]
    shape = ["linearisation", "kept", "verdict", "start", "middle", "end", "start_contrast", "end_contrast"]
    shares = ["linearisation", "sink_share", "last_share", "effective_tokens", "over_frozen_median"]
    for title, frame in (
        ("Tokens that matter most to the last representation", result.top(10)[top]),
        ("Shares of the sink and of the last token, and how many tokens matter in effect", result.summary[shares]),
        ("Shape of the profile: mean log10 norm of each third, ends against the middle", result.shapes[shape]),
    ):
        _show_summary(title, frame)
        output.print_text([""])


def _show_sensitivity(result: Sensitivity) -> None:
    from ostools.reporting.findings import profiles as findings

    frame: Any = result.frame
    lowest, is_estimate = frame["layer"].min(), (frame["method"] == "estimate").any()
    columns = (
        ["operator_lower", "operator_upper", "frobenius_norm"] if is_estimate else ["operator_norm", "frobenius_norm"]
    )
    table = frame[frame["layer"] == lowest].pivot(index=["position", "token"], columns="linearisation", values=columns)
    names = [
        f"{linearisation} {str(norm).removesuffix('_norm').replace('_', ' ')}" for norm, linearisation in table.columns
    ]
    word = "Estimated" if is_estimate else "Measured"
    _show_tokens(f"{word} sensitivity of the last representation, at layer {lowest}", names, table)
    output.print_text(["", *findings.sensitivity_findings(result)])


def _show_path_sum(result: PathSum) -> None:
    from ostools.reporting.look.theme import KINDS

    frame: Any = result.frame
    frame, columns = frame[frame["last"] == frame["last"].max()], ["variant", "kind", "linearisation", "norm"]
    table = frame.pivot(index=["position", "token"], columns=columns, values="value")
    table = table[frame[columns].drop_duplicates().itertuples(index=False, name=None)]
    names = [str(column[0]) for column in table.columns]
    _show_tokens("Path sums from each token to the last", names, table)
    norms = {"operator": "operator", "frobenius": "Frobenius"}
    notes = [
        f"{variant}: {KINDS[kind]}, beside the {linearisation} {norms[norm]} norm"
        for variant, kind, linearisation, norm in table.columns
    ]
    output.print_text(["", *notes])


def _show_tokens(title: str, names: Sequence[str], table: Any) -> None:
    from ostools.reporting.look.theme import display_token

    rows = (
        (int(position), display_token(str(token)), *map(float, values))
        for (position, token), values in zip(table.index, table.to_numpy(), strict=True)
    )
    output.stdout().print(output.table(title, ["position", "token", *names], rows, left=2))
