"""Which tokens matter: by thirds, by rank, by layer, and held against what the model does without a
token.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.names import known_norm
from ostools.ground.words import number
from ostools.measure.faithfulness.deletion import EFFECTS, MASKED, RANDOM, REMOVED, REPLACED, WAYS
from ostools.measure.faithfulness.faithfulness import BETWEEN, Faithfulness
from ostools.measure.faithfulness.linear_range import LinearRange
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT, Profile, places
from ostools.reporting.charts.tokens import norm_named, sensitivity_chart
from ostools.reporting.findings.effects import answer_finding
from ostools.reporting.forms import (
    BAND,
    TOKENS_WIDTH,
    bars,
    curve,
    heat,
    log_colour,
    log_rows,
    profile,
    token_labels,
    token_rows,
)
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.prompt import mark_template, template_note, template_positions
from ostools.results import Chart, Frame, frame_of

_RANKED = 12


def profile_chart(result: Profile) -> Chart:
    """The profile with the mean of each third, and the tokens with the largest shares.

    The thirds and the words about their contrasts are those of the profile without its first token;
    in a chat template, those of the user's text.
    """
    frame: Frame = frame_of(result)
    axes.require_finite(frame["value"], "a profile")
    names = list(dict.fromkeys(frame["linearisation"]))
    aside = template_positions(frame)
    symbol, _ = theme.differentiated(result.provenance.parameters)
    panels = [
        _profile_panel(frame, result.shapes, names, aside, symbol),
        _ranked_panel(frame, names, aside),
    ]
    notes = [*_verdicts(result, names, bool(aside)), *template_note(aside)]
    return draw.figure(
        [[panel] for panel in panels], _profile_title(result), notes, between=24, color="shared"
    )


def _verdicts(result: Profile, names: list[str], chat: bool) -> list[str]:
    """The sink's share, in a chat the text's; then a line a linearisation, the verdict on the
    tokens that are tested and the two contrasts it stands on."""
    shapes: Frame = result.shapes
    table = result.summary.set_index("linearisation")
    whose = {"the first token": "sink_share"} | ({"the text": "text_share"} if chat else {})
    lines = [
        f"Share of {words}: " + ", ".join(f"{table[column][name]:.1%} ({name})" for name in names)
        for words, column in whose.items()
    ]
    for name in names:
        row = shapes[
            (shapes["linearisation"] == name) & (shapes["kept"] == (OF_TEXT if chat else NO_SINK))
        ].iloc[0]
        line = f"{name}, {'the text alone' if chat else 'first token taken out'}: {row['verdict']}"
        if np.isfinite(row["middle"]):
            parts = [
                f"{end} {row[f'{end}_contrast']:+.2f} [{row[f'{end}_contrast_low']:.2f}, {row[f'{end}_contrast_high']:.2f}]"
                for end in ("start", "end")
            ]
            line += f" ({', '.join(parts)} decades against the middle third)"
        lines.append(line)
    return lines


def _profile_panel(
    frame: Frame, shapes: Any, names: list[str], aside: list[int], symbol: str
) -> Any:
    rows, y = log_rows(
        _profile_rows(frame, "value"), norm_named(str(frame["norm"].iloc[0]), symbol)
    )
    tested = OF_TEXT if aside else NO_SINK
    first = frame[frame["linearisation"] == names[0]]
    thirds = _thirds(shapes, tested, first["position"].to_numpy()[places(first, tested)])
    segments = []
    if len(thirds):
        thick = draw.rows(thirds).mark_rule(strokeWidth=4, opacity=0.5)
        x = axes.token_axis(token_labels(frame), margin=0.5, aside=aside)
        ends = {"x": x, "x2": "to:Q", "y": alt.Y("mean:Q", **y), "color": draw.hue("series", names)}
        segments = [thick.encode(**ends, tooltip=draw.tooltips(thirds))]
    of = "of the text" if aside else "first token taken out"
    title = f"Thick: geometric mean of each third, {of}" if len(thirds) else "Profile"
    looks: dict[str, Any] = {"height": 240, "beside": segments}
    return profile(rows, frame, y, draw.hue("series", names), title=title, **looks)


def _thirds(shapes: Any, tested: str, positions: np.ndarray) -> Frame:
    """The three means of what is tested as horizontal segments over the tokens that they are of."""
    thirds = np.array_split(positions, 3)
    rows = []
    for row in shapes[(shapes["kept"] == tested) & shapes["middle"].notna()].to_dict("records"):
        for third, segment in zip(("start", "middle", "end"), thirds, strict=True):
            ends = {"position": float(segment[0]), "to": float(segment[-1])}
            rows.append(
                {"series": row["linearisation"], "third": third, "mean": 10.0 ** row[third], **ends}
            )
    return pd.DataFrame(rows)


def _ranked_panel(frame: Frame, names: list[str], aside: list[int]) -> alt.LayerChart:
    """The tokens with the largest shares of the first linearisation, largest on top, and their
    shares of the others; in a chat template the text's."""
    rows = frame[(frame["linearisation"] == names[0]) & ~frame["position"].isin(aside)]
    top = rows.sort_values("rank").head(_RANKED)["position"].tolist()
    data = _profile_rows(frame[frame["position"].isin(top)], "share")
    data["name"] = [
        f"{token} {position}"
        for token, position in zip(data["token"], data["position"], strict=True)
    ]
    labels = data.drop_duplicates("position").set_index("position")["name"]
    axis = axes.names([labels[position] for position in top], title="token and its position i")
    value = axes.linear("share of the sum over all tokens", format=".0%", tickCount=6)
    marks = bars(data, axis, value, draw.hue("series", names), size=60, shape=alt.value("circle"))
    title = f"The largest shares{' of the text' if aside else ''}, by {names[0]}"
    return draw.panel(marks, TOKENS_WIDTH, 17 * len(top), title)


def _profile_rows(frame: Frame, column: str) -> Frame:
    return token_rows(
        frame, series=frame["linearisation"].astype(str), value=frame[column].astype(float)
    )


def _profile_title(result: Profile) -> str:
    narrowed = {"position", "logit_norm"} & result.provenance.parameters.keys()
    return f"Which tokens matter to {theme.differentiated(result.provenance.parameters)[1] if narrowed else 'the last one'}"


def sensitivity_result_chart(result: Sensitivity) -> Chart:
    """Token by token; layer by layer where several layers were measured."""
    many_layers = frame_of(result)["layer"].nunique() > 1
    return layers_chart(result) if many_layers else sensitivity_chart(result)


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
    tokens, layers = token_labels(frame), sorted(int(layer) for layer in frame["layer"].unique())
    positive: Any = frame[frame["value"] > 0]
    symbol, words = theme.differentiated(result.provenance.parameters)
    colour = log_colour(positive["value"], norm_named(norm, symbol))
    linearisations, aside = list(dict.fromkeys(frame["linearisation"])), template_positions(frame)
    height = max(90, min(22 * len(layers), 480))
    up = axes.names([str(layer) for layer in reversed(layers)], title="layer l", field="layer")
    panels = []
    for name in linearisations:
        rows = _profile_rows(positive[positive["linearisation"] == name], "value")
        rows = rows.assign(layer=positive.loc[rows.index, "layer"].astype(str))
        rows = rows.assign(start=rows["position"] - 0.5, end=rows["position"] + 0.5)
        across = axes.token_axis(tokens, "start", 0.5, aside)
        across = across if name == linearisations[-1] else axes.quiet(across)
        panel = mark_template(alt.layer(*heat(rows, across, up, colour, x2="end")), aside, height)
        panels.append(
            [panel.properties(width=TOKENS_WIDTH, height=height, title=draw.heading(name))]
        )
    notes = "Layer 0: the embeddings. Blank: exactly zero, as above the last block for every token but the last."
    title = f"Sensitivity of {words} to every token at every layer"
    return draw.figure(panels, title, [notes, *template_note(aside)], between=18, color="shared")


_HEADINGS = {
    "y_change": "change of y",
    "log_prob_drop": "change of log p of the answer",
    "kl": "KL of the next token",
}
_NARROW, _HEIGHT = 182, 170
_HUES = {REMOVED: "full", REPLACED: "replaced", MASKED: "wrong"}
_TITLE = "Each token by itself: removed, replaced by another of its kind, or masked in attention"


def faithfulness_chart(result: Faithfulness) -> Chart:
    """Top: how far y moves without each token. Middle: rank correlations of that, of the answer's
    and of the next token's change with each profile. Bottom: deletion curves in the orders of the
    profiles, random ones in grey."""
    frame: Frame = frame_of(result)
    ways = [way for way in WAYS if way in set(frame["way"])]
    profiles = list(dict.fromkeys(result.correlations["profile"]))
    hue = draw.hue("series", {way: _HUES[way] for way in ways}, columns=3)
    rows, y = log_rows(
        token_rows(frame, value=frame["y_change"], series=frame["way"]),
        "change of y without token i",
    )
    tokens = profile(rows, frame, y, hue, title=_TITLE, height=_HEIGHT)
    panels = [
        [tokens],
        [_ranks(result.correlations, effect, profiles, ways, hue) for effect in EFFECTS],
        [_deleted(result, way, profiles) for way in ways],
    ]
    lines: list[Any] = [
        alt.hconcat(*row, spacing=20).resolve_scale(color="shared") for row in panels
    ]
    title = "Is sensitivity use? What is lost without a token"
    return draw.figure(
        [[line] for line in lines], title, answer_finding(result), color="independent"
    )


def _ranks(table: Frame, effect: str, profiles: list[str], ways: list[str], hue: Any) -> Any:
    """A row a profile, a point with its interval a way."""
    rows = table[(table["effect"] == effect) & (table["kept"] == BETWEEN)].dropna(subset="spearman")
    columns = {"spearman": "value", "profile": "name", "way": "series"}
    rows = rows[[*columns, "low", "high"]].rename(columns=columns)
    value = axes.linear("Spearman [95%]", (-1, 1), values=[-1, -0.5, 0, 0.5, 1])
    offset = alt.YOffset("series:N", sort=ways, scale=alt.Scale(paddingOuter=0.6))
    names = axes.names(profiles, labels=effect == EFFECTS[0], grid=True)
    marks = bars(rows, names, value, hue, intervals=[("low", "high", 1.5)], offset=offset, size=38)
    return draw.panel(marks, _NARROW, max(90, 14 * len(profiles) * len(ways)), _HEADINGS[effect])


def _deleted(result: Faithfulness, way: str, profiles: list[str]) -> Any:
    """Curves of one way of taking tokens out; above them the area of the first profile's beside the
    random ones'.
    """
    table: Frame = result.deletion
    rows = table[table["way"] == way].rename(columns={"drop": "value", "order": "series"})
    rows = rows[["series", "deleted", "value", "low", "high"]]
    axes.require_finite(rows["value"], "a deletion curve")
    x = alt.X("deleted:Q", title="tokens out", axis=alt.Axis(grid=False, tickMinStep=1))
    y, random = axes.linear("loss of log p (nats)"), rows["series"] == RANDOM
    hue = draw.hue("series", {**{name: name for name in profiles}, RANDOM: theme.INK}, columns=6)
    marks = curve(rows[random], x, y, hue, bands=[BAND], strokeDash=[4, 3])
    marks += curve(rows[~random], x, y, hue)
    areas: Frame = result.areas
    first: Any = areas[(areas["way"] == way) & (areas["order"] == profiles[0])].iloc[0]
    notes = [
        f"{profiles[0]}: AOPC {first['aopc']:.3g}, p {first['p']:.2g}",
        f"random orders: AOPC {first['random']:.3g}",
    ]
    return draw.panel(marks, _NARROW, _HEIGHT, f"Tokens {way}, largest first", *notes)


_OVER_DRAWS = "median over draws; shade: their range"


def linear_range_chart(result: LinearRange) -> Chart:
    """The linear range of each token on a log axis: the median over the tokens it moves towards,
    and their spread.
    """
    frame: Frame = frame_of(result)
    ranges: Any = frame.groupby(["position", "token"], sort=False)["linear_range"]
    table = ranges.agg(["median", "min", "max"]).reset_index().dropna(subset="median")
    rows = token_rows(
        table, series=_OVER_DRAWS, value=table["median"], low=table["min"], high=table["max"]
    )
    rows, y = log_rows(rows, "t up to which y moves as J says", ("low", "high"))
    hue = draw.hue("series", {_OVER_DRAWS: theme.colour("full")})
    panel = profile(rows, frame, y, hue, height=240, bands=[("low", "high", 0.25)])
    return draw.figure(
        [[panel]],
        "How far towards another token the derivative carries",
        linear_range_findings(result),
    )


def linear_range_findings(result: LinearRange) -> list[str]:
    """The range in the median over tokens, and what the prediction is worth where a token is
    replaced.
    """
    table = result.tokens.dropna(subset="linear_range")
    if table.empty:
        return ["Rounding hides how y moves, on the whole way of every token."]
    ranges, tolerance = table["linear_range"], float(result.provenance.parameters["tolerance"])
    low, middle, high = (f"{value:.1%}" for value in (ranges.min(), ranges.median(), ranges.max()))
    error = float(np.median(table["error"].to_numpy()))
    return [
        f"Measured: y moves as the derivative says, within {tolerance:.0%}, over the first {middle} of the way to another "
        f"token of its kind (median of {len(table)} tokens, from {low} to {high}).",
        f"Where the token is replaced, the linear prediction is off by {number(error)} times its own "
        f"size in the median; its rank correlation with the change is {result.spearman:.2f}.",
    ]
