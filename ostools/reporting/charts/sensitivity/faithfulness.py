"""What a model does without tokens: rank correlations with profiles, and deletion curves beside random orders."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure import Faithfulness
from ostools.measure.faithfulness.deletion import RANDOM
from ostools.measure.faithfulness.faithfulness import BETWEEN
from ostools.measure.faithfulness.without import EFFECTS, MASKED, REMOVED, REPLACED, WAYS
from ostools.reporting.findings.faithfulness import answer_finding
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_HEADINGS = {"y_change": "change of y", "log_prob_drop": "change of log p of the answer", "kl": "KL of the next token"}
_WIDTH, _NARROW, _HEIGHT = 620, 182, 170
_HUES = {REMOVED: "full", REPLACED: "replaced", MASKED: "wrong"}


def faithfulness_chart(result: Faithfulness) -> alt.VConcatChart:
    """Top: how far y moves without each token. Middle: rank correlations of that, of the answer's and of the next token's
    change with each profile. Bottom: deletion curves in the orders of the profiles, random ones in grey."""
    ways = [way for way in WAYS if way in set(frame_of(result)["way"])]
    names = list(dict.fromkeys(result.correlations["profile"]))
    ranks = [_ranks(result, effect, names, ways) for effect in EFFECTS]
    curves = [_curves(result, way, names) for way in ways]
    title = alt.TitleParams(
        "Is sensitivity use? What is lost without a token",
        subtitle=answer_finding(result),
    )
    panels: list[Any] = [_tokens(result, ways), _row(ranks), _row(curves)]
    return axes.themed(alt.vconcat(*panels, spacing=20, title=title).resolve_scale(color="independent"))


def _row(panels: list[Any]) -> Any:
    return alt.hconcat(*panels, spacing=20).resolve_scale(color="shared")


def _tokens(result: Faithfulness, ways: list[str]) -> Any:
    """||y_n - y'|| of each token out, on a log axis."""
    frame: Frame = frame_of(result)
    axes.require_finite(frame["y_change"], "a change of y")
    places: Frame = frame.drop_duplicates("position").sort_values("position")
    tokens = [theme.shown(str(token)) for token in places["token"]]
    rows = frame[["position", "way"]].assign(
        value=frame["y_change"], token=[theme.shown(str(token)) for token in frame["token"]]
    )
    rows, floor = axes.floored(rows)
    base = draw.rows(rows).encode(
        x=axes.token_axis(tokens),
        y=draw.log_y(rows["shown"], "change of y without token i", floor),
        color=_ways(ways),
        tooltip=["position:Q", "token:N", "way:N", draw.VALUE],
    )
    marks = [
        base.mark_line(strokeWidth=1.2),
        base.mark_circle(size=16, opacity=1 if len(tokens) <= axes.TOKENS_NAMED else 0),
    ]
    note = f"; {axes.ZERO_NOTE.lower()}" if floor is not None else ""
    title = draw.heading(
        f"Each token by itself: removed, replaced by another of its kind, or masked in attention{note}"
    )
    return draw.layers(*marks, *draw.zeros(base, floor), width=_WIDTH, height=_HEIGHT, title=title)


def _ways(ways: list[str]) -> alt.Color:
    return draw.hue("way", {way: theme.colour(_HUES[way]) for way in ways}, columns=3)


def _ranks(result: Faithfulness, effect: str, names: list[str], ways: list[str]) -> Any:
    """A row a profile, a point with its interval a way."""
    table: Frame = result.correlations
    rows = table[(table["effect"] == effect) & (table["kept"] == BETWEEN)].dropna(subset="spearman")
    rows = rows[["profile", "way", "spearman", "low", "high"]].rename(columns={"spearman": "value"})
    first = effect == EFFECTS[0]
    scale = alt.Scale(domain=[-1, 1], nice=False)
    y: dict[str, Any] = {
        "y": alt.Y(
            "profile:N",
            sort=names,
            scale=alt.Scale(domain=names),
            title=None,
            axis=alt.Axis(labels=first, ticks=False, grid=True, labelLimit=0),
        ),
        "yOffset": alt.YOffset("way:N", sort=ways, scale=alt.Scale(paddingOuter=0.6)),
    }
    base = draw.rows(rows).encode(color=_ways(ways), tooltip=["profile:N", "way:N", draw.VALUE, "low:Q", "high:Q"], **y)
    x = alt.X("value:Q", title="Spearman [95%]", scale=scale, axis=alt.Axis(values=[-1, -0.5, 0, 0.5, 1]))
    marks = [
        base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", scale=scale, title="Spearman [95%]"), x2="high:Q"),
        base.mark_point(filled=True, size=38).encode(x=x),
    ]
    height = max(90, 14 * len(names) * len(ways))
    return draw.layers(*marks, width=_NARROW, height=height, title=draw.heading(_HEADINGS[effect]))


def _curves(result: Faithfulness, way: str, names: list[str]) -> Any:
    """Curves of one way of taking tokens out; above them the area of the first profile's beside the random ones'."""
    table: Frame = result.deletion
    here = table[table["way"] == way]
    rows = here[["order", "deleted", "drop", "low", "high"]].rename(columns={"drop": "value"})
    axes.require_finite(rows["value"], "a deletion curve")
    order = [*names, RANDOM]
    colours = dict(zip(order, [*theme.colours(names), theme.INK], strict=True))
    random = rows[rows["order"] == RANDOM]
    y = alt.Y("value:Q", title="loss of log p (nats)")
    place: dict[str, Any] = {
        "x": alt.X("deleted:Q", title="tokens out", axis=alt.Axis(grid=False, tickMinStep=1)),
        "color": draw.hue("order", colours, columns=6),
    }
    band = draw.rows(random).encode(y=alt.Y("low:Q", title="loss of log p (nats)"), y2="high:Q", **place)
    lines = draw.rows(rows).encode(y=y, tooltip=["order:N", "deleted:Q", draw.VALUE], **place)
    dash = alt.condition(f"datum.order == '{RANDOM}'", alt.value([4, 3]), alt.value([1, 0]))
    marks = [band.mark_area(opacity=0.18), lines.mark_line(strokeWidth=1.5).encode(strokeDash=dash)]
    areas: Frame = result.areas
    first: Any = areas[(areas["way"] == way) & (areas["order"] == names[0])].iloc[0]
    said = [f"{names[0]}: AOPC {first['aopc']:.3g}, p {first['p']:.2g}", f"random orders: AOPC {first['random']:.3g}"]
    title = alt.TitleParams(
        f"Tokens {way}, largest first",
        subtitle=said,
        fontSize=11,
        fontWeight="normal",
        subtitleFontSize=10,
        offset=6,
        frame="group",
    )
    return draw.layers(*marks, width=_NARROW, height=_HEIGHT, title=title)
