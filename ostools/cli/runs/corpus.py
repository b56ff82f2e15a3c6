"""`ostools corpus`: the profiles of many windows of many texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.mitigated import Under
from ostools.cli.kit.options import Device, LoadDtype, Model, parse_lengths
from ostools.cli.kit.steps import at_work, check, give
from ostools.ground.errors import InputError
from ostools.ground.signals import ended_by_signals

if TYPE_CHECKING:
    from ostools.runs import Corpus, CorpusCollapse
    from ostools.runs.forecast import Unloaded

_SHOWN = ("length", "kind", "texts", "windows", "too_short", "sink_share", "last_share", "effective_tokens")
_PAIRS = (
    *("length", "dtype", "texts", "windows", "mean", "low", "high", "pair_noise"),
    *("hidden_share", "hidden_low", "hidden_high", "same_top_token_share"),
)
_SHAPES = ("length", "kept", "verdict", "start_contrast", "start_contrast_p", "end_contrast", "end_contrast_p")


def corpus(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Texts: .jsonl, .parquet, or plain text, parted by empty lines."),
    ],
    lengths: Annotated[str, typer.Option(metavar="LIST", help="Tokens of a window (64,256,1024).")] = "64,256",
    measure: Annotated[
        str,
        typer.Option(metavar="NAME", help="sensitivity, attention; collapse."),
    ] = "sensitivity",
    linearisation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the sensitivity: full, frozen, frozen-attention, ... Default: full."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of the sensitivity: exact, sketch, estimate. Default: by the model's width."
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Of the collapse: a dtype compared with float64; repeat it. Default: float32 and bfloat16.",
        ),
    ] = None,
    texts: Annotated[
        int | None, typer.Option(metavar="N", help="How many texts a length. Default: all that are long enough.", min=1)
    ] = None,
    per_text: Annotated[int, typer.Option(metavar="N", help="Most windows of a text.", min=1)] = 1,
    field: Annotated[str, typer.Option(metavar="NAME", help="The key or column that holds the texts.")] = "text",
    bins: Annotated[int | None, typer.Option(metavar="N", help="Of relative position. Default: 32.", min=1)] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the texts and of the windows in them.", min=0)] = 0,
    mitigation: Under = None,
    model: Model = "embedded",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the cells are kept; made if it is missing. Without it nothing is kept."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Chart (.html .png .svg .pdf) or table (.parquet .csv .json) of the profiles."
        ),
    ] = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Measure profiles over a corpus of texts.

    Windows of exactly so many tokens are drawn from the texts. Their mean over relative position has intervals over texts,
    and a test of the U-shape. With --measure collapse it measures how far each window and the same with its last token once
    more are apart, and how many of them each dtype hides. With --out the same command resumes.

    \b
    Example:
      ostools corpus texts.jsonl --lengths 64,256 --texts 1000 --out corpus --plot corpus.png
      ostools corpus texts.jsonl --lengths 64,256 --measure collapse --dtype bfloat16
    """

    def work(interrupted: Callable[[], bool]) -> None:
        from mitigations import optional
        from ostools import runs
        from ostools.models.files.config import quiet, read_tokenizer
        from ostools.models.files.sources import locate
        from ostools.models.tokens import required
        from ostools.runs.corpus.corpus import sample_windows
        from ostools.runs.corpus.measures import Measure
        from ostools.runs.corpus.pairs import PAIRS
        from ostools.runs.corpus.result import bins_of
        from ostools.runs.corpus.texts import read_texts
        from ostools.runs.stored.store import Store

        check(plot, "--plot")
        sizes = parse_lengths(lengths)
        if dtype and measure != PAIRS:
            raise InputError(
                f"--dtype: expected it with --measure {PAIRS} alone; --load-dtype loads the model in a dtype"
            )
        given = optional(mitigation)
        Measure.from_options(measure, linearisation, method, dtype or None, 1, given)
        bins_of(bins, measure, sizes)
        found = read_texts(file, field)
        if out is not None:
            Store(out).require_ours()
        with quiet():
            tokenizer = required(read_tokenizer(locate(model, None, MANNERS.base).tokenizer))
        drawn = sample_windows(tokenizer, found, sizes, texts, per_text, seed, output.note).window_sets
        windows = [one.length for one in drawn]

        def memory(on: Unloaded) -> int:
            what = Measure.from_options(measure, linearisation, method, dtype or None, on.shape.d_model, given)
            return max(what.memory(on.shape, window, on.limit) for window in windows)

        with at_work("measuring windows", model, device, load_dtype, memory) as (loaded, progress):
            # One of two classes of results, by the measure: pyright knows them apart by literals alone.
            result: Any = runs.corpus(
                loaded,
                found,
                lengths=sizes,
                measure=measure,
                linearisation=linearisation,
                method=method,
                dtypes=dtype or None,
                count=texts,
                per_text=per_text,
                bins=bins,
                seed=seed,
                mitigation=given,
                out=out,
                max_memory=MANNERS.max_memory,
                progress=progress,
                interrupted=interrupted,
            )
        give(result, plot, _show)

    ended_by_signals(work)


def _show(result: Corpus | CorpusCollapse) -> None:
    from ostools.results import frame_of
    from ostools.runs import Corpus

    if isinstance(result, Corpus):
        _show_profiles(result)
    else:
        rows = frame_of(result)[[*_PAIRS, "tokens_per_second"]].itertuples(index=False, name=None)
        output.print_table("Windows, and with their last token once more", [*_PAIRS, "tokens/s"], rows, left=2)


def _show_profiles(result: Corpus) -> None:
    summary, shapes = result.summary, result.shapes
    asked: Any = result.provenance.parameters
    rows = summary[[*_SHOWN, "tokens_per_second"]].itertuples(index=False, name=None)
    output.print_table(f"Windows of {asked['measure']}", [*_SHOWN, "tokens/s"], rows, left=2)
    rows = shapes[list(_SHAPES)].itertuples(index=False, name=None)
    output.print_table("Ends against the middle, in decades, over texts", _SHAPES, rows, left=3)
