"""What a model does without tokens: rank correlations with profiles, and deletion curves beside random orders."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure.faithfulness.deletion import RANDOM
from ostools.measure.faithfulness.faithfulness import BETWEEN, Faithfulness
from ostools.measure.faithfulness.without import EFFECTS, MASKED, REMOVED, REPLACED, WAYS
from ostools.reporting.findings.faithfulness import answer_finding
from ostools.reporting.forms.bars import bars, names
from ostools.reporting.forms.curve import curve, fitted
from ostools.reporting.forms.profile import of_tokens, profile, shown_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_HEADINGS = {"y_change": "change of y", "log_prob_drop": "change of log p of the answer", "kl": "KL of the next token"}
_NARROW, _HEIGHT = 182, 170
_HUES = {REMOVED: "full", REPLACED: "replaced", MASKED: "wrong"}
_TITLE = "Each token by itself: removed, replaced by another of its kind, or masked in attention"


def faithfulness_chart(result: Faithfulness) -> Any:
    """Top: how far y moves without each token. Middle: rank correlations of that, of the answer's and of the next token's
    change with each profile. Bottom: deletion curves in the orders of the profiles, random ones in grey."""
    frame: Frame = frame_of(result)
    ways = [way for way in WAYS if way in set(frame["way"])]
    profiles = list(dict.fromkeys(result.correlations["profile"]))
    hue = draw.hue("series", {way: theme.colour(_HUES[way]) for way in ways}, columns=3)
    rows, y = fitted(of_tokens(frame, value=frame["y_change"], series=frame["way"]), "change of y without token i")
    title = f"{_TITLE}; {axes.ZERO_NOTE.lower()}" if rows["zero"].any() else _TITLE
    tokens = profile(rows, shown_tokens(frame), y, hue, title=title, height=_HEIGHT, width=1.2)
    panels = [
        [tokens],
        [_ranks(result.correlations, effect, profiles, ways, hue) for effect in EFFECTS],
        [_deleted(result, way, profiles) for way in ways],
    ]
    lines: list[Any] = [alt.hconcat(*row, spacing=20).resolve_scale(color="shared") for row in panels]
    title = "Is sensitivity use? What is lost without a token"
    return draw.figure([[line] for line in lines], title, answer_finding(result), color="independent")


def _ranks(table: Frame, effect: str, profiles: list[str], ways: list[str], hue: Any) -> Any:
    """A row a profile, a point with its interval a way."""
    rows = table[(table["effect"] == effect) & (table["kept"] == BETWEEN)].dropna(subset="spearman")
    columns = {"spearman": "value", "profile": "name", "way": "series"}
    rows = rows[[*columns, "low", "high"]].rename(columns=columns)
    value = {
        "title": "Spearman [95%]",
        "scale": alt.Scale(domain=[-1, 1], nice=False),
        "axis": alt.Axis(values=[-1, -0.5, 0, 0.5, 1]),
    }
    offset = alt.YOffset("series:N", sort=ways, scale=alt.Scale(paddingOuter=0.6))
    marks = bars(
        rows,
        names(profiles, labels=effect == EFFECTS[0], grid=True),
        value,
        hue,
        intervals=[("low", "high", 1.5)],
        offset=offset,
        size=38,
        tooltip=["name:N", "series:N"],
    )
    height = max(90, 14 * len(profiles) * len(ways))
    return draw.layers(*marks, width=_NARROW, height=height, title=draw.heading(_HEADINGS[effect]))


def _deleted(result: Faithfulness, way: str, profiles: list[str]) -> Any:
    """Curves of one way of taking tokens out; above them the area of the first profile's beside the random ones'."""
    table: Frame = result.deletion
    rows = table[table["way"] == way].rename(columns={"drop": "value", "order": "series"})
    rows = rows[["series", "deleted", "value", "low", "high"]]
    axes.require_finite(rows["value"], "a deletion curve")
    colours = dict(zip([*profiles, RANDOM], [*theme.colours(profiles), theme.INK], strict=True))
    x = alt.X("deleted:Q", title="tokens out", axis=alt.Axis(grid=False, tickMinStep=1))
    y = {"title": "loss of log p (nats)", "scale": alt.Scale(zero=True), "axis": alt.Axis()}
    hue, told = draw.hue("series", colours, columns=6), ["series:N", "deleted:Q"]
    random = rows["series"] == RANDOM
    marks = curve(rows[random], x, y, hue, bands=[("low", "high", 0.18)], tooltip=told, strokeDash=[4, 3])
    marks += curve(rows[~random], x, y, hue, tooltip=told)
    areas: Frame = result.areas
    first: Any = areas[(areas["way"] == way) & (areas["order"] == profiles[0])].iloc[0]
    said = [
        f"{profiles[0]}: AOPC {first['aopc']:.3g}, p {first['p']:.2g}",
        f"random orders: AOPC {first['random']:.3g}",
    ]
    heading = draw.heading(f"Tokens {way}, largest first", said)
    return draw.layers(*marks, width=_NARROW, height=_HEIGHT, title=heading)
