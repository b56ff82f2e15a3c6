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
    shapes = result.shapes[result.shapes["kept"] == (OF_TEXT if aside else NO_SINK)]
    symbol, words = theme.differentiated(result.provenance.parameters)
    narrowed = {"position", "logit_norm"} & result.provenance.parameters.keys()
    rows, y = log_rows(
        _profile_rows(frame, "value"), norm_named(str(frame["norm"].iloc[0]), symbol)
    )
    hue = draw.hue("series", names)
    thirds = _thirds(
        shapes, frame[frame["linearisation"] == names[0]], OF_TEXT if aside else NO_SINK
    )
    segments = []
    if len(thirds):
        x = axes.token_axis(token_labels(frame), margin=0.5, aside=aside)
        ends = {"x": x, "x2": "to:Q", "y": alt.Y("mean:Q", **y), "color": hue}
        thick = draw.rows(thirds).mark_rule(strokeWidth=4, opacity=0.5)
        segments = [thick.encode(**ends, tooltip=draw.tooltips(thirds))]
    of = "of the text" if aside else "first token taken out"
    title = f"Thick: geometric mean of each third, {of}" if len(thirds) else "Profile"
    upper = profile(rows, frame, y, hue, title=title, height=240, beside=segments)
    return draw.figure(
        [[upper], [_ranked_panel(frame, names, aside)]],
        f"Which tokens matter to {words if narrowed else 'the last one'}",
        [*_verdicts(result, shapes.set_index("linearisation"), aside), *template_note(aside)],
        between=24,
        color="shared",
    )


def _verdicts(result: Profile, shapes: Frame, aside: list[int]) -> list[str]:
    """The sink's share, in a chat the text's; then a line a linearisation, the verdict on the
    tokens that are tested and the two contrasts it stands on."""
    table = result.summary.set_index("linearisation")
    whose = {"the first token": "sink_share"} | ({"the text": "text_share"} if aside else {})
    lines = [
        f"Share of {words}: "
        + ", ".join(f"{share:.1%} ({name})" for name, share in table[column].items())
        for words, column in whose.items()
    ]
    for name, row in shapes.loc[table.index].iterrows():
        contrasts = ", ".join(
            f"{end} {row[f'{end}_contrast']:+.2f} [{row[f'{end}_contrast_low']:.2f}, {row[f'{end}_contrast_high']:.2f}]"
            for end in ("start", "end")
        )
        line = f"{name}, {'the text alone' if aside else 'first token taken out'}: {row['verdict']}"
        tested = f" ({contrasts} decades against the middle third)"
        lines.append(line + tested * bool(np.isfinite(row["middle"])))
    return lines


def _thirds(shapes: Frame, first: Frame, tested: str) -> Frame:
    """The three means of what is tested as horizontal segments over the tokens that they are of."""
    thirds = np.array_split(first["position"].to_numpy()[places(first, tested)], 3)
    return pd.DataFrame(
        [
            {
                "series": row["linearisation"],
                "third": third,
                "mean": 10.0 ** row[third],
                "position": float(segment[0]),
                "to": float(segment[-1]),
            }
            for row in shapes[shapes["middle"].notna()].to_dict("records")
            for third, segment in zip(("start", "middle", "end"), thirds, strict=True)
        ]
    )


def _ranked_panel(frame: Frame, names: list[str], aside: list[int]) -> alt.LayerChart:
    """The tokens with the largest shares of the first linearisation, largest on top, and their
    shares of the others; in a chat template the text's."""
    rows = frame[(frame["linearisation"] == names[0]) & ~frame["position"].isin(aside)]
    top = rows.sort_values("rank").head(_RANKED)["position"].tolist()
    data = _profile_rows(frame[frame["position"].isin(top)], "share")
    data["name"] = data["token"] + " " + data["position"].astype(str)
    labels = data.drop_duplicates("position").set_index("position")["name"]
    axis = axes.names(labels.loc[top].tolist(), title="token and its position i")
    value = axes.linear("share of the sum over all tokens", format=".0%", tickCount=6)
    marks = bars(data, axis, value, draw.hue("series", names), size=60, shape=alt.value("circle"))
    title = f"The largest shares{' of the text' * bool(aside)}, by {names[0]}"
    return draw.panel(marks, TOKENS_WIDTH, 17 * len(top), title)


def _profile_rows(frame: Frame, column: str) -> Frame:
    return token_rows(
        frame, series=frame["linearisation"].astype(str), value=frame[column].astype(float)
    )


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
    positive, aside = frame[frame["value"] > 0], template_positions(frame)
    symbol, words = theme.differentiated(result.provenance.parameters)
    colour = log_colour(positive["value"], norm_named(norm, symbol))
    layers = sorted(frame["layer"].unique())
    height = max(90, min(22 * len(layers), 480))
    up = axes.names([str(layer) for layer in reversed(layers)], title="layer l", field="layer")
    across = axes.token_axis(token_labels(frame), "start", 0.5, aside)
    names = list(dict.fromkeys(frame["linearisation"]))
    panels = []
    for name in names:
        of_name = positive[positive["linearisation"] == name]
        rows = _profile_rows(of_name, "value").assign(
            layer=of_name["layer"].astype(str),
            start=of_name["position"] - 0.5,
            end=of_name["position"] + 0.5,
        )
        x = across if name == names[-1] else axes.quiet(across)
        panel = mark_template(alt.layer(*heat(rows, x, up, colour, x2="end")), aside, height)
        title = draw.heading(name)
        panels.append([panel.properties(width=TOKENS_WIDTH, height=height, title=title)])
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
    rows = token_rows(frame, value=frame["y_change"], series=frame["way"])
    rows, y = log_rows(rows, "change of y without token i")
    panels = [
        [profile(rows, frame, y, hue, title=_TITLE, height=_HEIGHT)],
        [_ranks(result.correlations, effect, profiles, ways, hue) for effect in EFFECTS],
        [_deleted(result, way, profiles) for way in ways],
    ]
    lines: list[Any] = [
        [alt.hconcat(*row, spacing=20).resolve_scale(color="shared")] for row in panels
    ]
    title = "Is sensitivity use? What is lost without a token"
    return draw.figure(lines, title, answer_finding(result), color="independent")


def _ranks(table: Frame, effect: str, profiles: list[str], ways: list[str], hue: Any) -> Any:
    """A row a profile, a point with its interval a way."""
    columns = {
        "spearman": "value",
        "profile": "name",
        "way": "series",
        "low": "low",
        "high": "high",
    }
    rows = table[(table["effect"] == effect) & (table["kept"] == BETWEEN)].dropna(subset="spearman")
    value = axes.linear("Spearman [95%]", (-1, 1), values=[-1, -0.5, 0, 0.5, 1])
    offset = alt.YOffset("series:N", sort=ways, scale=alt.Scale(paddingOuter=0.6))
    names = axes.names(profiles, labels=effect == EFFECTS[0], grid=True)
    looks: Any = {"intervals": [("low", "high", 1.5)], "offset": offset, "size": 38}
    marks = bars(rows[list(columns)].rename(columns=columns), names, value, hue, **looks)
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
    first: Any = result.areas.set_index(["way", "order"]).loc[(way, profiles[0])]
    notes = [
        f"{profiles[0]}: AOPC {first['aopc']:.3g}, p {first['p']:.2g}",
        f"random orders: AOPC {first['random']:.3g}",
    ]
    marks += curve(rows[~random], x, y, hue)
    return draw.panel(marks, _NARROW, _HEIGHT, f"Tokens {way}, largest first", *notes)


_OVER_DRAWS = "median over draws; shade: their range"


def linear_range_chart(result: LinearRange) -> Chart:
    """The linear range of each token on a log axis: the median over the tokens it moves towards,
    and their spread.
    """
    frame: Frame = frame_of(result)
    ranges: Any = frame.groupby(["position", "token"], sort=False)["linear_range"]
    table = ranges.agg(value="median", low="min", high="max").reset_index().dropna(subset="value")
    ends = {name: table[name] for name in ("value", "low", "high")}
    rows = token_rows(table, series=_OVER_DRAWS, **ends)
    rows, y = log_rows(rows, "t up to which y moves as J says", ("low", "high"))
    hue = draw.hue("series", {_OVER_DRAWS: theme.colour("full")})
    panel = profile(rows, frame, y, hue, height=240, bands=[("low", "high", 0.25)])
    title = "How far towards another token the derivative carries"
    return draw.figure([[panel]], title, linear_range_findings(result))


def linear_range_findings(result: LinearRange) -> list[str]:
    """The range in the median over tokens, and what the prediction is worth where a token is
    replaced.
    """
    table: Frame = result.tokens.dropna(subset="linear_range")
    if table.empty:
        return ["Rounding hides how y moves, on the whole way of every token."]
    tolerance = float(result.provenance.parameters["tolerance"])
    low, middle, high = (f"{value:.1%}" for value in table["linear_range"].quantile([0, 0.5, 1]))
    return [
        f"Measured: y moves as the derivative says, within {tolerance:.0%}, over the first {middle} of the way to another "
        f"token of its kind (median of {len(table)} tokens, from {low} to {high}).",
        f"Where the token is replaced, the linear prediction is off by {number(float(table['error'].median()))} times its own "
        f"size in the median; its rank correlation with the change is {result.spearman:.2f}.",
    ]
