"""Which tokens matter: by thirds, by rank, by layer, and held against what the model does without a
token.
"""

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground import number
from ostools.measure import Faithfulness, LinearRange, Profile
from ostools.measure.faithfulness.faithfulness import BETWEEN, EFFECTS, MASKED, REMOVED, WAYS
from ostools.measure.profiles.position_effect import (
    MODEL,
    SHUFFLED,
    THIRDS,
    UNTRAINED,
    PositionEffect,
)
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT, is_in
from ostools.reporting.charts.tokens import norm_named
from ostools.reporting.findings.effects import answer_finding, contrast_words
from ostools.reporting.forms import (
    BAND,
    bars,
    curve,
    log_rows,
    profile,
    token_labels,
    token_rows,
)
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, Looks, frame_of


def profile_chart(result: Profile) -> Chart:
    """The profile with the mean of each third.

    The thirds and the words about their contrasts are those of the profile without its first token;
    in a chat template, those of the user's text.
    """
    frame: Frame = frame_of(result)
    axes.require_finite(frame["value"], "a profile")
    names, aside = list(dict.fromkeys(frame["linearisation"])), draw.template_positions(frame)
    part, of = (OF_TEXT, "of the text") if aside else (NO_SINK, "first token taken out")
    shapes = result.shapes[result.shapes["kept"] == part]
    symbol, words = theme.differentiated(result.provenance.parameters)
    title = norm_named(str(frame["norm"].iloc[0]), symbol)
    columns = {"series": frame["linearisation"].astype(str), "value": frame["value"].astype(float)}
    rows, y = log_rows(token_rows(frame, **columns), title)
    hue, heading, segments = draw.hue("series", names), "Profile", []
    thirds = _thirds(shapes, frame[frame["linearisation"] == names[0]], part)
    if len(thirds):
        heading = f"Thick: geometric mean of each third, {of}"
        x = axes.token_axis(token_labels(frame), aside=aside)
        thick = draw.rows(thirds).mark_rule(strokeWidth=4, opacity=0.5)
        ends: Looks = {"x2": "to:Q", "y": alt.Y("mean:Q", **y), "color": hue}
        segments = [thick.encode(x=x, tooltip=draw.tooltips(thirds), **ends)]
    panel = profile(rows, frame, y, hue, title=heading, height=240, further_marks=segments)
    notes = [*result.findings(), *draw.template_note(aside)]
    return draw.figure([[panel]], f"Which tokens matter to {words}", notes)


def _thirds(shapes: Frame, first: Frame, tested: str) -> Frame:
    """The three means of what is tested as horizontal segments over the tokens that they are of."""
    thirds = np.array_split(np.sort(first["position"].to_numpy()[is_in(first, tested)]), 3)
    return pd.DataFrame(
        [
            {"series": row["linearisation"], "third": third, "mean": 10.0 ** row[third]}
            | {"position": float(segment[0]), "to": float(segment[-1])}
            for row in shapes[shapes["middle"].notna()].to_dict("records")
            for third, segment in zip(("start", "middle", "end"), thirds, strict=True)
        ]
    )


_HEADINGS = {
    "y_change": "change of y",
    "log_prob_drop": "change of log p of the answer",
    "kl": "KL of the next token",
}
_NARROW, _HEIGHT = 182, 170
_HUES = {REMOVED: "full", MASKED: "wrong"}
_TITLE = "Each token by itself: removed, or masked in attention"


def faithfulness_chart(result: Faithfulness) -> Chart:
    """Top: how far y moves without each token. Below: rank correlations of that, of the answer's
    and of the next token's change with each profile."""
    frame: Frame = frame_of(result)
    ways = [way for way in WAYS if way in set(frame["way"])]
    hue = draw.hue("series", {way: _HUES[way] for way in ways}, columns=2)
    rows = token_rows(frame, value=frame["y_change"], series=frame["way"])
    rows, y = log_rows(rows, "change of y without token i")
    above = profile(rows, frame, y, hue, title=_TITLE, height=_HEIGHT)
    ranks = [_ranks(result.correlations, effect, ways, hue) for effect in EFFECTS]
    below = alt.hconcat(*ranks, spacing=20).resolve_scale(color="shared")
    title, notes = "Is sensitivity use? What is lost without a token", [answer_finding(result)]
    return draw.figure([[above], [below]], title, notes, color="independent")


def _ranks(table: Frame, effect: str, ways: list[str], hue: alt.Color) -> alt.LayerChart:
    """A row a profile, a point with its interval a way."""
    profiles = list(dict.fromkeys(table["profile"]))
    rows = table[(table["effect"] == effect) & (table["kept"] == BETWEEN)].dropna(subset="spearman")
    columns = {"spearman": "value", "profile": "name", "way": "series"}
    rows = rows[[*columns, "low", "high"]].rename(columns=columns)
    marks = bars(
        rows,
        axes.names(profiles, labels=effect == EFFECTS[0], grid=True),
        axes.linear("Spearman [95%]", (-1, 1), values=[-1, -0.5, 0, 0.5, 1]),
        hue,
        intervals=[("low", "high", 1.5)],
        offset=alt.YOffset("series:N", sort=ways, scale=alt.Scale(paddingOuter=0.6)),
        size=38,
    )
    return draw.panel(marks, _NARROW, max(90, 14 * len(profiles) * len(ways)), _HEADINGS[effect])


def linear_range_chart(result: LinearRange) -> Chart:
    """The linear range of each token on a log axis."""
    frame: Frame = frame_of(result)
    table = frame.dropna(subset="linear_range")
    rows, y = log_rows(
        token_rows(table, series="linear range", value=table["linear_range"]),
        "t up to which y moves as J says",
    )
    hue = draw.hue("series", {"linear range": theme.colour("full")})
    title = "How far towards another token the derivative carries"
    return draw.figure([[profile(rows, frame, y, hue, height=240)]], title, result.findings())


def linear_range_findings(result: LinearRange) -> list[str]:
    """The range in the median over tokens, and what the prediction is worth where a token is
    replaced.
    """
    table: Frame = result.frame.dropna(subset="linear_range")
    if table.empty:
        return ["Rounding hides how y moves, on the whole way of every token."]
    tolerance = float(result.provenance.parameters["tolerance"])
    low, middle, high = (f"{value:.1%}" for value in table["linear_range"].quantile([0, 0.5, 1]))
    return [
        f"Measured: y moves as the derivative says, within {tolerance:.0%}, over the first "
        f"{middle} of the way to another token (median of {len(table)} tokens, from "
        f"{low} to {high}).",
        "Where the token is replaced, the linear prediction is off by "
        f"{number(float(table['error'].median()))} times its own size in the median; its rank "
        f"correlation with the change is {result.spearman:.2f}.",
    ]


NAMES = {
    MODEL: "the model",
    UNTRAINED: "untrained (same architecture)",
    SHUFFLED: "the model, tokens shuffled",
}
_SOURCE_HUES = {MODEL: "full", UNTRAINED: "none", SHUFFLED: "frozen"}


def position_chart(result: PositionEffect) -> Chart:
    """Geometric mean over passages and rotations of each norm over its passage's middle third; the
    band is the 95% interval.
    """
    across = "position in the text (each token stands once in every third)"
    panel = _position_panel(result, across, "norm of ∂y/∂v over the middle third's", 620, 260)
    title = "Sensitivity by position, token identity taken out"
    return draw.figure([[panel]], title, contrast_words(result))


def position_layers(result: PositionEffect, width: int, height: int) -> Chart:
    """The same without a title, in a size."""
    return _position_panel(result, "position in the text", "norm / middle", width, height)


def _position_panel(
    result: PositionEffect, across: str, up: str, width: int, height: int
) -> alt.LayerChart:
    curves, y = log_rows(position_curves(result), up, ("low", "high"))
    hues = {NAMES[source]: _SOURCE_HUES[source] for source in dict.fromkeys(curves["source"])}
    x = axes.length_axis(curves["position"], across, "position", log=False)
    marks = curve(curves, x, y, draw.hue("series", hues), bands=[BAND], width=1.8)
    for third in (1, 2):
        edge = third * (int(curves["position"].max()) + 1) / 3 - 0.5
        marks += draw.line_at("x", "position", edge)
    return draw.panel(marks, width, height)


def position_curves(result: PositionEffect) -> Frame:
    """One row a source and position: value (a ratio to the middle third of the same passage), low,
    high (95% over passages).
    """
    from scipy.special import stdtrit

    table: Frame = frame_of(result)
    table = table.assign(log=np.log10(table["norm"].to_numpy(dtype=float)))
    keys = ["source", "passage"]
    middle = table[table["third"] == THIRDS[1]].groupby(keys, sort=False)["log"].mean()
    table = table.join(middle.rename("middle"), on=keys)
    table["log"] -= table["middle"]
    by_passage = table.groupby([*keys, "position"], sort=False)["log"].mean()
    over_passages = by_passage.groupby(["source", "position"], sort=False)
    over = over_passages.agg(["mean", "std", "count"]).reset_index()
    half = stdtrit(over["count"] - 1, 0.975) * over["std"] / np.sqrt(over["count"])
    return over[["source", "position"]].assign(
        series=[NAMES[str(source)] for source in over["source"]],
        value=10 ** over["mean"],
        low=10 ** (over["mean"] - half),
        high=10 ** (over["mean"] + half),
    )
