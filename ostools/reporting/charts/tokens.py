"""Profiles over the tokens of a prompt: sensitivity, path sums, both side by side, their change,
parts of a logit; and means over several prompts.

One panel per norm, since an operator norm and a Frobenius norm share no axis; one level per
linearisation or variant; path sums whose constant is unknown, of which only the shape counts, have
a panel of their own.
"""

from collections.abc import Sequence

import altair as alt

from ostools.ground import METHOD_KINDS, MINUS, InputError, known_norm, runs
from ostools.measure import (
    AttentionBaselines,
    Attribution,
    Bounds,
    Change,
    Comparison,
    Sensitivities,
    Sensitivity,
)
from ostools.measure.profiles.change import by_norm
from ostools.measure.prompts import named_by
from ostools.reporting.findings.sensitivity import NORMS as NORM_WORDS
from ostools.reporting.findings.sensitivity import of_layer
from ostools.reporting.forms import (
    BAND,
    SQUARE,
    TOKENS_WIDTH,
    curve,
    heat,
    layers_up,
    log_colour,
    log_rows,
    profile,
    token_bars,
    token_labels,
    token_rows,
)
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, Looks, frame_of

SHAPE = "shape"
NORMS = {
    "operator": "operator norm of ∂y/∂v",
    "frobenius": "Frobenius norm of ∂y/∂v",
    SHAPE: "an order alone, no scale",
}
INTERVAL_NOTE = "Bands: 95% intervals of estimated norms, a token at a time."
LOWER_END_NOTE = (
    "An estimated operator norm is drawn at its lower end: the norm itself is at least as large."
)


def sensitivity_chart(result: Sensitivity) -> Chart:
    """Sensitivity of y_n to every token, measured or estimated: at one layer a line per
    linearisation, a panel per norm; layer by layer where several were measured.
    """
    if frame_of(result)["layer"].nunique() > 1:
        return layers_chart(result)
    symbol, words = theme.differentiated(result.provenance.parameters)
    frame = frame_of(result)
    title = f"Sensitivity of {words} to each token{of_layer(frame)}"
    return _profiles(measured_rows(frame), title, symbol)


def layers_chart(result: Sensitivity) -> Chart:
    """||d y_n / d v_i^(l)|| of every layer l (rows, the embeddings at the bottom) and token i
    (columns), on a log colour scale.

    One panel a linearisation, all on one scale; the operator norm, or of estimates, which know a
    lower bound of it only, the Frobenius norm. Blank: exactly zero, which above the last block is
    every token but the last.
    """
    table: Frame = frame_of(result)
    norm = known_norm(table["method"])
    frame = table.assign(value=table[f"{norm}_norm"])
    axes.require_finite(frame["value"], "a sensitivity")
    positive, aside = frame[frame["value"] > 0], draw.template_positions(frame)
    symbol, words = theme.differentiated(result.provenance.parameters)
    colour = log_colour(positive["value"], norm_named(norm, symbol))
    height = max(90, min(22 * frame["layer"].nunique(), 480))
    across = axes.token_axis(token_labels(frame), "start", aside)
    names = list(dict.fromkeys(frame["linearisation"]))
    cells = token_rows(
        positive,
        series=positive["linearisation"].astype(str),
        value=positive["value"].astype(float),
        layer=positive["layer"],
        start=positive["position"] - 0.5,
        end=positive["position"] + 0.5,
    )
    panels = []
    for name in names:
        x = across if name == names[-1] else axes.quiet(across)
        marks = heat(cells[cells["series"] == name], x, layers_up(), colour, x2="end")
        panel = draw.panel(marks, TOKENS_WIDTH, height, name)
        panels.append([draw.mark_template(panel, aside, height)])
    notes = "Layer 0: the embeddings. " * int(frame["layer"].min() == 0) + (
        "Blank: exactly zero, as above the last block for every token but the last."
    )
    layers = sorted(set(map(int, frame["layer"])))
    title = f"Sensitivity of {words} to every token at layers {runs(layers)}"
    return draw.figure(
        panels, title, [notes, *draw.template_note(aside)], between=18, color="shared"
    )


def bounds_chart(result: Bounds) -> Chart:
    """The path sums over the tokens: certified bounds dashed, the paper's forms dotted, rankings
    dash-dotted. Above them stands which forms are not believed on this prompt."""
    title = "Path sums of Theorem 5.1 over the tokens"
    return _profiles(path_rows(frame_of(result)), title, first=_not_believed(result.beliefs))


def attention_baselines_chart(result: AttentionBaselines) -> Chart:
    """Four ways to read attention as a profile over the tokens, on one log axis."""
    rows = frame_of(result).rename(columns={"baseline": "name"})
    rows = rows.assign(norm=SHAPE, kind="measured", linearisation="")
    return _profiles(rows, "Attention of the last token to each token, read four ways")


def comparison_chart(result: Comparison, crowding: Sequence[str] = ()) -> Chart:
    """Measured, certified and the paper's profiles on one log axis per norm, without the variants
    that are `crowding` it.
    """
    rows = path_rows(frame_of(result).rename(columns={"source": "variant"}))
    rows, verdicts = rows[~rows["name"].isin(crowding)], result.summary
    symbol, words = theme.differentiated(result.provenance.parameters)
    title = f"Sensitivity of {words} against the path sums"
    verdicts = verdicts[~verdicts["variant"].isin(crowding)]
    return _profiles(rows, title, symbol, _not_believed(verdicts))


def measured_rows(frame: Frame) -> Frame:
    """A sensitivity table in the long form of the others: one row per position, linearisation and
    norm.
    """
    norms = list(dict.fromkeys([known_norm(frame["method"]), "frobenius"]))
    rows = by_norm(frame, [*named_by(frame), "linearisation", "method"], norms)
    return rows.assign(kind=rows["method"].map(METHOD_KINDS), name=rows["linearisation"])


def path_rows(frame: Frame) -> Frame:
    """A path-sum table with the columns of the others; what has no scale has its own panel."""
    from ostools.measure.bounds.variants import VARIANTS

    unscaled = [name for name, variant in VARIANTS.items() if not variant.scaled]
    norm = frame["norm"].astype(str).where(~frame["variant"].isin(unscaled), SHAPE)
    return frame.rename(columns={"variant": "name"}).assign(norm=norm)


def norm_named(norm: str, symbol: str = "y") -> str:
    """A norm of the derivative of y, or of a logit t, whose two norms are one."""
    words = NORMS.get(norm, norm)
    return words if symbol == "y" or norm == SHAPE else f"length of ∂{symbol}/∂v"


def _not_believed(verdicts: Frame) -> list[str]:
    """A line for each form that is not believed on this prompt."""
    wrong: Frame = verdicts[verdicts["believed"].isin([False])]
    return [
        f"{name}: {words}" for name, words in zip(wrong["variant"], wrong["words"], strict=True)
    ]


def _profiles(
    rows: Frame, title: str, symbol: str = "y", first: Sequence[str] = ()
) -> alt.TopLevelMixin:
    """One panel per norm, one line per name, over the positions; `first`: the first lines below the
    title.
    """
    axes.require_finite(rows["value"], "a profile")
    rows = rows.reindex(columns=dict.fromkeys([*rows.columns, "lower", "upper"]))
    wide = rows["upper"] > rows["lower"]
    rows = rows.assign(series=rows["kind"].map(theme.KINDS) + ": " + rows["name"].astype(str))
    hue, dash = kind_legend(rows)
    columns = {"value": rows["value"].astype(float), **rows[["series", "linearisation"]]}
    data = token_rows(rows, **columns, **rows[["lower", "upper"]].where(wide))
    norms = [norm for norm in NORMS if norm in set(rows["norm"])]
    panels = []
    for norm in norms:
        words, of_norm = norm_named(norm, symbol), data[rows["norm"] == norm]
        of_norm, y = log_rows(of_norm, words, ("lower", "upper"))
        looks: Looks = {"dash": dash, "bands": [("lower", "upper", 0.15)]}
        panels.append([profile(of_norm, rows, y, hue, last=norm == norms[-1], **looks)])
    lower_end = ((rows["kind"] == "estimated") & (rows["norm"] == "operator")).any()
    notes = [*first, *draw.template_note(draw.template_positions(rows))]
    notes += [LOWER_END_NOTE] * bool(lower_end) + [INTERVAL_NOTE] * bool(wide.any())
    return draw.figure(panels, title, notes, between=18, color="shared", strokeDash="shared")


def kind_legend(data: Frame) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each series, in one legend: measured first, then certified, the paper's,
    predicted.
    """
    names = data[["series", "kind", "name"]].drop_duplicates()
    names = names.sort_values(
        "kind", key=lambda kinds: kinds.map([*theme.KINDS].index), kind="stable"
    )
    labels = names["series"].tolist()
    scale = alt.Scale(domain=labels, range=[theme.DASHES[kind] for kind in names["kind"]])
    dash = alt.StrokeDash("series:N", scale=scale, legend=alt.Legend(title=None))
    return draw.hue("series", dict(zip(labels, names["name"], strict=True))), dash


def change_chart(result: Change) -> Chart:
    """The ratio second / first of each token's norm on a log axis, a panel a norm, a line a
    linearisation; a grey line where nothing changed. Of several layers the lowest."""
    table = frame_of(result)
    rows = table[(table["layer"] == table["layer"].min()) & table["ratio"].notna()]
    if rows.empty:
        raise InputError(
            "a change: expected a ratio at one token at least, found none: every norm of the "
            "first is rounding"
        )
    hue = draw.hue("series", list(dict.fromkeys(rows["linearisation"])))
    data = token_rows(rows, series=rows["linearisation"], value=rows["ratio"].astype(float))
    norms = [norm for norm in NORM_WORDS if norm in set(rows["norm"])]
    same = draw.line_at("y", "value", 1.0, colour=theme.colour("float64"))
    panels = []
    for norm in norms:
        title = f"{NORM_WORDS[norm]}, second / first"
        of_norm, y = log_rows(data[rows["norm"] == norm], title, also=[1.0])
        looks: Looks = {"height": 220, "last": norm == norms[-1], "further_marks": same}
        panels.append([profile(of_norm, table, y, hue, **looks)])
    notes = [*result.findings(), "Above the line at 1 the second is larger."]
    title = f"How much each token's sensitivity changed{of_layer(rows)}"
    return draw.figure(panels, title, notes, between=18)


_UP, _DOWN = "raises it", "lowers it"
_DWARFED = 2.0
"""A bar so many times as long as the next one is cut short, with its number: a sink's part would
hide all others.
"""


def attribution_chart(result: Attribution) -> Chart:
    """A bar a token; the biases, which belong to none, and the sum stand below the title. The
    longest bar is cut where it would dwarf the others."""
    axes.require_finite(frame_of(result)["contribution"], "attribution")
    of = result.of_tokens.reset_index(drop=True)
    values = of["contribution"].astype(float)
    longest, next_one = [*values.abs().nlargest(2), 0.0, 0.0][:2]
    limit = 1.25 * next_one if next_one and longest > _DWARFED * next_one else float("inf")
    rows = token_rows(
        of,
        low=0.0,
        high=values.clip(-limit, limit),
        value=values,
        series=(values >= 0).map({True: _UP, False: _DOWN}),
    )
    hue = draw.hue("series", {_UP: "full", _DOWN: "frozen"}, **SQUARE)
    cut = rows[values.abs() > limit]
    names = str(result.provenance.parameters["token"]).split(MINUS)
    tokens = [f"“{theme.short_word(token)}”" for token in names]
    of_what = "the difference of the logits" if len(tokens) > 1 else "the logit"
    quantity = f"contribution to {of_what}"
    panel = token_bars(rows, token_labels(of), hue, quantity, numbered=cut)
    notes = [
        f"Cut short: the bar of “{token}”, whose number stands at its end."
        for token in cut["token"]
    ]
    title = f"What each token contributes to {MINUS.join(tokens)}"
    return draw.figure([[panel]], title, [*result.findings(), *notes])


def several_chart(result: Sensitivities) -> Chart:
    """The mean share over the even share, a line a source with the 95% interval over prompts; of
    the lowest layer.
    """
    every = result.over_position()
    table = every[every["layer"] == every["layer"].min()]
    # A share is so many times an even one, at the middle of its bin.
    table = table.assign(
        series=table["kind"].map(theme.KINDS) + ": " + table["source"],
        name=table["source"],
        at=(table["start"] + table["end"]) / 2,
        value=table["mean"],
    )
    hue, dash = kind_legend(table)
    x = alt.X("at:Q", title="relative position", scale=alt.Scale(domain=[0, 1]))
    panels = []
    for norm, group in table.groupby("norm", sort=False):
        columns = ["series", "start", "end", "at", "value", "low", "high"]
        rows, y = log_rows(group[columns], "share / even share", ["low", "high"])
        marks = curve(rows, x, y, hue, dash=dash, bands=[BAND], points=14, width=1.8)
        even = draw.line_at("y", "value", 1.0)
        panels.append(draw.panel(even + marks, 300, 240, NORM_WORDS[str(norm)]))
    _, words = theme.differentiated(result.provenance.parameters)
    notes = (
        "Mean over the prompts, each by the shares of its own sum. Dotted: an even share."
    ) + " Shade: the 95% interval of the mean." * bool(table["low"].notna().any())
    title = (
        f"Sensitivity of {words} over {len(result)} prompts, by relative position{of_layer(table)}"
    )
    return draw.figure([panels], title, [notes], spacing=30)
