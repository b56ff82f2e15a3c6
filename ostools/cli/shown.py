"""Results on a terminal: a table, some of its rows, and the sentences that are found in it.

A row of `_VIEWS` says of a class of results which of its tables is shown and how. A class without
one shows its `summary`, or its `frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ostools.cli import output

_ROWS = 48
"""Rows of a table that a terminal shows; a file gets all."""
_PARTS = 4
"""Parts of a prompt whose means are shown of several prompts."""
_FINDINGS = "ostools.reporting.findings"
_CHARTS = "ostools.reporting.charts"


@dataclass(frozen=True)
class View:
    """How a table is shown; names of columns stand in one text, with blanks between them.

    table: an attribute of the result, or a method without arguments.
    columns: those that are shown, where they are; none: all.
    index, across, values: the table is pivoted, with a column for each value of `across`.
    greatest: rows are shown in the order of this column's size.
    groups: one row a group, with the number of its rows and the means of `columns`.
    """

    title: str
    table: str = "frame"
    columns: str = ""
    index: str = ""
    across: str = ""
    values: str = ""
    greatest: str = ""
    groups: str = ""


_VIEWS: dict[str, tuple[View, ...]] = {
    "Bounds": (
        View("What the forms are worth on this prompt", "beliefs", "variant words"),
        View(
            "Path sums from each token to the last",
            index="last position token",
            across="variant kind linearisation norm",
            values="value",
        ),
    ),
    "Profile": (
        View(
            "Tokens that matter most to the last representation",
            "top",
            "position token origin value share share_without_sink over_frozen",
        ),
        View(
            "Shares of the sink and of the last token, and how many tokens matter in effect",
            "summary",
            "linearisation sink_share last_share text_share effective_tokens over_frozen_median",
        ),
        View(
            "Shape of the profile: mean log10 norm of each third, ends against the middle",
            "shapes",
            "linearisation kept verdict start middle end start_contrast end_contrast",
        ),
    ),
    "Attribution": (View("Parts of the logit", columns="position token contribution"),),
    "UntrainedBaselines": (
        View(
            "Profiles of the model and of untrained ones",
            "summary",
            "source seed verdict sink_share last_share spearman cesaro_spearman",
        ),
    ),
    "Spectra": (View("Products of the patterns", "depth"),),
    "Attention": (
        View(
            "The greatest weights of the last token's attention",
            columns="layer head token position weight",
            greatest="weight",
        ),
    ),
    "AttentionDifference": (
        View(
            "The greatest differences of the last token's attention",
            columns="layer head token first_position second_position first second difference",
            greatest="difference",
        ),
    ),
    "HeadScores": (View("Where each head looks", "summary"),),
    "AttentionVariation": (View("delta + own weight of the last token's attention, mean over heads", "over_heads"),),
    "Repeats": (
        View(
            "||y - y*|| in float64 against copies n; 95% interval of the rate",
            "summary",
            "source draw task items sink first_token first_token_share verdict rate low high status exact_from",
        ),
    ),
    "Evaluation": (
        View(
            "Answers",
            "summary",
            "length right asked accuracy wilson_low wilson_high something_else cut_off unanswered content_right "
            "content_read mean_absolute_error log_probability probability active",
        ),
    ),
    "Retrieval": (
        View(
            "Retrieving a record, by its position; means over seeds",
            columns="found log_probability sensitivity_mean sensitivity_others",
            groups="position",
        ),
    ),
    "Figure2": (View("Right answers to copying one digit", columns="correct", groups="panel task"),),
    "Figure3": (
        View(
            "Right answers to sums and counts, and their absolute errors",
            columns="correct absolute_error",
            groups="task mode",
        ),
    ),
    "Figure4": (
        View(
            "The most frequent answers to sums and counts", columns="task mode output answers right", greatest="answers"
        ),
    ),
    "Figure5": (
        View("Distance of the last representations", columns="panel pair dtype length mean head_minimum head_maximum"),
    ),
    "Figure8": (View("Distance of the last representations after one layer"),),
    "Figure9": (View("Total variation delta of a softmax"),),
    "Counting": (
        View(
            "Answers, and the distance of n and n + 1 beside its rounding noise",
            columns="dtype length key answer absolute_error distance pair_noise",
        ),
    ),
    "Decodability": (
        View("What linear probes decode", columns="dtype site layer test control accuracy low high chance selectivity"),
    ),
    "ProbeIntervention": (
        View(
            "What the output reads",
            columns="dtype site layer direction cosine random_low random_high arrived predicted intervention followed rank",
        ),
    ),
    "FailureStage": (
        View(
            "Where answers are lost",
            columns="mitigation dtype length verdict prompts read unread undecodable indistinguishable status",
        ),
    ),
    "Ablation": (
        View(
            "The greatest real effects, and the predicted ones",
            "top",
            "quantity target value ablated effect predicted_effect",
        ),
    ),
    "Faithfulness": (
        View("Rank correlation of what is lost without a token with its profile", "correlations"),
        View("Deletion curves: mean loss of log p (AOPC), beside random orders", "areas"),
    ),
    "Study": (
        View(
            "Verdicts on each mitigation against none",
            "verdicts",
            "mitigation answers log_probability collapse sensitivity",
        ),
        View(
            "Effects: with the mitigation against without",
            "effects",
            "mitigation quantity dtype kind scale effect low high lengths inactive",
        ),
    ),
    "WindowStudy": (View("Answers against collapse, by window", "summary"),),
    "ChainOfThought": (
        View("Norms of d y_n / d v_i by part of the text", "summary"),
        View("The reasoning, line by line", "lines"),
    ),
    "Corpus": (View("Windows of text", "summary"), View("Shape over texts", "shapes")),
    "CorpusCollapse": (View("Windows, and with their last token once more"),),
}
"""By the class of a result. A class without a row shows its `summary`, or its `frame`."""

_SENTENCES: dict[str, tuple[str, ...]] = {
    "Sensitivity": (f"{_FINDINGS}.sensitivity:sensitivity_findings",),
    "Attention": (f"{_CHARTS}.attention:attention_findings",),
    "AttentionDifference": (f"{_CHARTS}.attention:difference_findings",),
    "Evaluation": (
        f"{_FINDINGS}.evaluation:evaluation_findings",
        f"{_FINDINGS}.evaluation:unread_texts",
    ),
    "Counting": (f"{_FINDINGS}.counting:counting_findings",),
    "Decodability": (f"{_FINDINGS}.probes:probe_findings",),
    "ProbeIntervention": (f"{_FINDINGS}.probes:intervention_findings",),
    "FailureStage": (f"{_FINDINGS}.probes:failure_stage_findings",),
    "Ablation": (f"{_FINDINGS}.ablation:beliefs", f"{_FINDINGS}.ablation:ablation_findings"),
    "Faithfulness": (f"{_FINDINGS}.faithfulness:faithfulness_findings",),
    "Retrieval": (f"{_CHARTS}.positions:retrieval_notes",),
    "Figure8": (f"{_CHARTS}.experiments.decay:figure_8_notes",),
    "Figure9": (f"{_CHARTS}.experiments.decay:figure_9_notes",),
}
"""Functions from a result to sentences, by the class of the result."""


def show(result: Any) -> None:
    """The result of a measurement on a terminal."""
    several: Any = getattr(result, "results", None)
    if isinstance(several, tuple) and type(result).__name__.endswith("s") and len(several) > 1:
        _show_several(result)
        return
    for view in _views(result):
        _show_view(result, view)
        output.print_text([""])
    output.print_text(findings_of(result))


def findings_of(result: Any, *, beside_a_file: bool = False) -> list[str]:
    """Sentences that are found in a result; beside a file those alone that a picture needs."""
    from ostools.cli.signature import imported

    name = type(result).__name__
    if name == "Collapse":
        return _of_collapse(result, beside_a_file)
    if beside_a_file:
        return []
    said = [line for target in _SENTENCES.get(name, ()) for line in imported(target)(result)]
    deviations = getattr(result, "deviations", ())
    if name == "Study":
        said += list(result.verdicts["sentence"])
    if name in ("Figure8", "Figure9"):
        said = [*_laws(result), *said]
    return [*said, *deviations]


def _laws(result: Any) -> list[str]:
    """The law that each curve of Figures 8 and 9 follows."""
    from ostools.reporting.charts.experiments.decay import law_words

    keys = ("reading", "quantity") if type(result).__name__ == "Figure8" else ("quantity",)
    fits = result.fits.to_dict("records")
    return [f"{' '.join(str(fit[key]) for key in keys)}: {law_words(fit)}" for fit in fits]


def _of_collapse(result: Any, beside_a_file: bool) -> list[str]:
    from ostools.measure.collapse.readings import Reading
    from ostools.reporting.findings import collapse as findings

    if beside_a_file:
        reading = result.reading or Reading.with_defaults("y", None, "l2")
        return findings.verdict_lines(result, reading)
    if result.reading is not None:
        return findings.reading_findings(result, result.reading)
    return findings.collapse_findings(result, result.provenance.model.get("trained_lengths"))


def _views(result: Any) -> Sequence[View]:
    name = type(result).__name__
    if name == "Collapse":
        return (_view_of_collapse(result),)
    if name == "Sensitivity":
        return (_view_of_sensitivity(result),)
    table = "summary" if hasattr(result, "summary") else "frame"
    return _VIEWS.get(name, (View(name, table),))


def _view_of_sensitivity(result: Any) -> View:
    """Measured norms, or estimates with their intervals; and of what they are the norms."""
    exact = bool((result.frame["method"] == "exact").all())
    asked = result.provenance.parameters
    place = f"position {asked['position']}" if "position" in asked else "the last token"
    of = f"the representation of {place}"
    if "logit" in asked:
        tokens = " minus that of ".join(map(repr, asked["logit"]))
        of = f"the logit of {tokens} after {place}"
    return View(
        f"{'Measured' if exact else 'Estimated'} sensitivity of {of}",
        index="layer position token",
        across="linearisation",
        values=f"{'operator_norm' if exact else ''} frobenius_norm {'' if exact else 'frobenius_lower frobenius_upper'}",
    )


def _view_of_collapse(result: Any) -> View:
    """The distance that is read, by length and, where there are several, by layer."""
    from ostools.measure.collapse.readings import Reading

    reading = result.reading or Reading.with_defaults("y", None, "l2")
    layers = len(set(result.frame["layer"])) > 1
    title = f"{reading.words}, {result.frame['task'].iloc[0]}"
    if layers:
        return View(
            f"{title.replace('v^(L)', 'v^(l)')}; layer 0 is the embedding",
            index="dtype pair seed layer",
            across="length",
            values="mean",
        )
    return View(
        f"{title}; noise of the difference and one representable step beside it",
        index="pair seed length",
        across="dtype",
        values="mean pair_noise machine_line",
    )


def _show_view(result: Any, view: View) -> None:
    table: Any = getattr(result, view.table)
    if callable(table):
        table = table()
    if type(result).__name__ == "Collapse":
        from ostools.measure.collapse.readings import Reading

        reading = result.reading or Reading.with_defaults("y", None, "l2")
        every = len(set(result.frame["layer"])) > 1
        table = reading.of(result.measured(), every_layer=every)
    title = view.title
    if "length" in table.columns:
        lengths, part = output.some_of(map(int, table["length"]))
        table, title = table[table["length"].isin(lengths)], title + part
    if view.groups:
        table = _grouped(table, view)
    if view.greatest:
        order = table[view.greatest].abs().sort_values(ascending=False, kind="stable").index
        table = table.reindex(order).head(10)
    if view.index:
        table = _pivoted(table, view)
    elif view.columns and not view.groups:
        table = table[_there(view.columns, table)]
    shown = table.head(_ROWS)
    if len(shown) < len(table):
        title += f", {len(shown)} of {len(table)} rows (--out FILE has all)"
    _print(title, shown)


def _there(names: str, table: Any) -> list[str]:
    """Those of the columns that a table has."""
    return [name for name in names.split() if name in table.columns]


def _grouped(table: Any, view: View) -> Any:
    """One row a group: how many rows it has, and the mean of what is there; of true and false the
    share."""
    means, groups = _there(view.columns, table), view.groups.split()
    numbers = table.assign(**{name: table[name].astype("Float64") for name in means})
    grouped = numbers.groupby(groups, sort=False)
    return grouped.agg(rows=(groups[0], "size"), **{name: (name, "mean") for name in means}).reset_index()


def _pivoted(table: Any, view: View) -> Any:
    values = _there(view.values, table)
    values = [name for name in values if table[name].notna().any()] or values[:1]
    index, across = _there(view.index, table), _there(view.across, table)
    wide = table.pivot_table(index=index, columns=across, values=values, aggfunc="first", sort=False, dropna=False)
    plain = len(values) == 1
    wide.columns = [" ".join(map(str, name[1:] if plain else (*name[1:], name[0]))) for name in wide]
    wide = wide.dropna(how="all")
    constant = [name for name in index if wide.index.get_level_values(name).nunique() == 1]
    dropped = [name for name in constant if name in ("layer", "last", "pair", "seed")]
    if dropped and len(dropped) < len(index):
        wide = wide.droplevel(dropped)
    return wide.reset_index()


def _print(title: str, table: Any) -> None:
    """A whole table; columns of words are set to the left."""
    from ostools.reporting.style.theme import display_token

    kept = [name for name in table.columns if table[name].notna().any()]
    words = [name for name in kept if table[name].dtype.kind not in "iuf"]
    rows = (
        [_cell(name, cell, display_token) for name, cell in row]
        for row in (zip(kept, cells, strict=True) for cells in table[kept].itertuples(index=False, name=None))
    )
    left = next((at for at, name in enumerate(kept) if name not in words), len(kept))
    output.print_table(title, [str(name) for name in kept], rows, left=max(left, 1))


def _cell(name: str, cell: Any, display_token: Callable[[str], str]) -> Any:
    """A token as a short visible word; the row of a logit's parts that has none is of the biases."""
    if name not in ("token", "answer") or cell is None:
        return cell
    return "biases" if name == "token" and str(cell) == "" else display_token(str(cell))


def _show_several(result: Any) -> None:
    """Each prompt by itself, and then the mean over relative position."""
    for number, one in enumerate(result, start=1):
        output.print_text(["", f"prompt {number} of {len(result)}"])
        show(one)
    shortest = min(one.frame["position"].nunique() for one in result)
    table = result.over_position(min(_PARTS, shortest))
    columns = ["source", "norm", "layer", "start", "end", "mean", "low", "high"]
    title = f"Mean over {len(result)} prompts of the share of a part of the prompt over its even share"
    output.print_text([""])
    output.print_table(title, columns, table[columns].itertuples(index=False, name=None), left=2)
