"""Which tokens matter: the profile with the means of its thirds, the tokens by rank, full against frozen; and the sensitivity
of every layer as a heat map.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.names import known_norm
from ostools.measure import Profile, Sensitivity
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT, places
from ostools.reporting.charts.sensitivity.over_tokens import norm_named, sensitivity_chart
from ostools.reporting.look import axes, draw, regions, theme
from ostools.reporting.look.aside import aside as aside_of
from ostools.reporting.look.aside import banded, notes, underlined
from ostools.results import Column, Frame, frame_of

_RANKED = 12


def profile_chart(result: Profile) -> alt.VConcatChart:
    """The profile with the mean of each third, the tokens with the largest shares, and each linearisation over frozen.

    The thirds and the words about their contrasts are those of the profile without its first token; in a chat template, those
    of the user's text.
    """
    frame: Frame = frame_of(result)
    axes.require_finite(frame["value"], "a profile")
    names = list(dict.fromkeys(frame["linearisation"]))
    tokens = _shown_tokens(frame)
    aside = aside_of(frame)
    symbol, _ = theme.differentiated(result.provenance.parameters)
    panels: list[Any] = [_profile_panel(frame, result.shapes, names, tokens, aside, symbol)]
    panels.append(_ranked_panel(frame, names, aside))
    others: Any = frame[
        (frame["linearisation"] != "frozen") & np.isfinite(frame["over_frozen"]) & (frame["over_frozen"] > 0)
    ]
    if len(others):
        panels.append(_ratio_panel(others, names, tokens, aside))
    said = [*_verdicts(result, names, bool(aside)), *notes(aside)]
    title = alt.TitleParams(_profile_title(result), subtitle=said)
    return axes.themed(alt.vconcat(*panels, title=title, spacing=24).resolve_scale(color="shared"))


def _verdicts(result: Profile, names: list[str], chat: bool) -> list[str]:
    """The sink's share, in a chat the text's; then a line a linearisation, the verdict on the tokens that are tested and the
    two contrasts it stands on."""
    shapes: Any = result.shapes
    table = result.summary.set_index("linearisation")
    whose = {"the first token": "sink_share"} | ({"the text": "text_share"} if chat else {})
    lines = [
        f"Share of {words}: " + ", ".join(f"{table[column][name]:.1%} ({name})" for name in names)
        for words, column in whose.items()
    ]
    for name in names:
        row = shapes[(shapes["linearisation"] == name) & (shapes["kept"] == (OF_TEXT if chat else NO_SINK))].iloc[0]
        line = f"{name}, {'the text alone' if chat else 'first token taken out'}: {row['verdict']}"
        if np.isfinite(row["middle"]):
            parts = [
                f"{end} {row[f'{end}_contrast']:+.2f} [{row[f'{end}_contrast_low']:.2f}, {row[f'{end}_contrast_high']:.2f}]"
                for end in ("start", "end")
            ]
            line += f" ({', '.join(parts)} decades against the middle third)"
        lines.append(line)
    return lines


def _shown_tokens(frame: Frame) -> list[str]:
    places = frame.drop_duplicates("position").sort_values("position")
    return [theme.shown(str(token)) for token in places["token"]]


def _colour(names: list[str]) -> alt.Color:
    return draw.hue("linearisation", dict(zip(names, theme.colours(names), strict=True)))


def _profile_panel(
    frame: Frame, shapes: Any, names: list[str], tokens: list[str], aside: list[int], symbol: str
) -> Any:
    data = _drawn(frame, "value")
    floored, floor = axes.floored(data)
    scale, axis = axes.log_axis(floored["shown"], floor)
    norm = norm_named(str(frame["norm"].iloc[0]), symbol)
    y = alt.Y("shown:Q", title=norm, scale=scale, axis=axis)
    x = axes.token_axis(tokens, labelled=False)
    tooltip = ["position:Q", "token:N", "linearisation:N", draw.VALUE]
    base = axes.chart(floored).encode(x=x, y=y, color=_colour(names), tooltip=tooltip)
    base = axes.unfolded(base, floored)
    layers: list[Any] = [base.mark_line(strokeWidth=1.2)]
    layers.append(base.mark_circle(size=16, opacity=1 if len(tokens) <= axes.TOKENS_NAMED else 0))
    layers += draw.zeros(base, floor)
    tested = OF_TEXT if aside else NO_SINK
    first = frame[frame["linearisation"] == names[0]]
    thirds = _thirds(shapes, tested, first["position"].to_numpy()[places(first, tested)])
    if len(thirds):
        segments = axes.chart(thirds).encode(
            x=axes.token_axis(tokens, labelled=False, field="from"),
            x2="to:Q",
            y=alt.Y("mean:Q", scale=scale, axis=axis, title=norm),
            color=_colour(names),
            tooltip=["linearisation:N", "third:N", alt.Tooltip("mean:Q", format=".4g")],
        )
        layers.append(axes.unfolded(segments, thirds).mark_rule(strokeWidth=3.5, strokeCap="round"))
    of = "of the text" if aside else "first token taken out"
    words = f"Thick: geometric mean of each third, {of}" if len(thirds) else "Profile"
    title = draw.heading(words, above=regions.room(tokens))
    return regions.coloured(banded(alt.layer(*layers), aside), tokens, labelled=False, aside=aside).properties(
        width=620, height=240, title=title
    )


def _thirds(shapes: Any, tested: str, positions: np.ndarray) -> Frame:
    """The three means of what is tested as horizontal segments over the tokens that they are of."""
    thirds = np.array_split(positions, 3)
    rows = []
    for row in shapes[(shapes["kept"] == tested) & shapes["middle"].notna()].to_dict("records"):
        for third, here in zip(("start", "middle", "end"), thirds, strict=True):
            ends = {"from": float(here[0]), "to": float(here[-1])}
            rows.append({"linearisation": row["linearisation"], "third": third, "mean": 10.0 ** row[third], **ends})
    return pd.DataFrame(rows)


def _ranked_panel(frame: Frame, names: list[str], aside: list[int]) -> alt.Chart:
    """The tokens with the largest shares of the first linearisation, largest on top, and their shares of the others; in a chat
    template the text's."""
    rows = frame[(frame["linearisation"] == names[0]) & ~frame["position"].isin(aside)]
    top = rows.sort_values("rank").head(_RANKED)["position"].tolist()
    data = _drawn(frame[frame["position"].isin(top)], "share")
    data["label"] = [f"{token} {position}" for token, position in zip(data["token"], data["position"], strict=True)]
    labels = data.drop_duplicates("position").set_index("position")["label"]
    chart = draw.rows(data).mark_circle(size=60)
    return chart.encode(
        x=alt.X("value:Q", title="share of the sum over all tokens", axis=alt.Axis(format=".0%", tickCount=6)),
        y=alt.Y(
            "label:N",
            sort=[labels[position] for position in top],
            title="token and its position i",
            axis=alt.Axis(labelLimit=0, ticks=False),
        ),
        color=_colour(names),
        tooltip=["position:Q", "token:N", "linearisation:N", alt.Tooltip("value:Q", format=".3%")],
    ).properties(
        width=620,
        height=17 * len(top),
        title=draw.heading(f"The largest shares{' of the text' if aside else ''}, by {names[0]}"),
    )


def _ratio_panel(others: Frame, names: list[str], tokens: list[str], aside: list[int]) -> Any:
    data = _drawn(others, "over_frozen").assign(shown=lambda rows: rows["value"])
    low, high = float(data["shown"].min()), float(data["shown"].max())
    scale, axis = axes.log_axis(pd.concat([data["shown"], pd.Series([min(low, 0.5), max(high, 2.0)])]), None)
    y = alt.Y("shown:Q", title="ratio to frozen", scale=scale, axis=axis)
    tooltip = ["position:Q", "token:N", "linearisation:N", draw.VALUE]
    base = draw.rows(data).encode(x=axes.token_axis(tokens, aside=aside), y=y, color=_colour(names), tooltip=tooltip)
    one = axes.chart(line := pd.DataFrame({"one": [1.0]})).encode(y=alt.Y("one:Q", scale=scale, axis=axis))
    rule = axes.unfolded(one, line).mark_rule(strokeDash=[3, 3])
    points = base.mark_circle(size=16, opacity=1 if len(tokens) <= axes.TOKENS_NAMED else 0)
    return banded(alt.layer(rule, base.mark_line(strokeWidth=1.2), points), aside).properties(
        width=620, height=150, title=draw.heading("What freezing patterns and norm scales changes")
    )


def _drawn(frame: Frame, column: str) -> Frame:
    return pd.DataFrame(
        {
            "position": frame["position"].astype(int).tolist(),
            "token": [theme.shown(str(token)) for token in frame["token"]],
            "linearisation": frame["linearisation"].astype(str).tolist(),
            "value": frame[column].astype(float).tolist(),
        }
    )


def _profile_title(result: Profile) -> str:
    narrowed = {"at", "towards_norm"} & result.provenance.parameters.keys()
    return f"Which tokens matter to {theme.differentiated(result.provenance.parameters)[1] if narrowed else 'the last one'}"


def sensitivity_result_chart(result: Sensitivity) -> alt.VConcatChart:
    """Token by token; layer by layer where several layers were measured."""
    several = frame_of(result)["layer"].nunique() > 1
    return layers_chart(result) if several else sensitivity_chart(result)


def layers_chart(result: Sensitivity) -> alt.VConcatChart:
    """||d y_n / d v_i^(l)|| of every layer l (rows, the embeddings at the bottom) and token i (columns), on a log colour scale.

    One panel a linearisation, all on one scale; the operator norm, or of estimates, which know a lower bound of it only, the
    Frobenius norm. Blank: exactly zero, which above the last block is every token but the last.
    """
    table: Frame = frame_of(result)
    norm = known_norm(table["method"])
    frame = table.assign(value=table[f"{norm}_norm"])
    axes.require_finite(frame["value"], "a sensitivity")
    tokens, layers = _shown_tokens(frame), sorted(int(layer) for layer in frame["layer"].unique())
    shown: Any = frame[frame["value"] > 0]
    symbol, words = theme.differentiated(result.provenance.parameters)
    colour = _log_colour(shown["value"], norm_named(norm, symbol))
    names = list(dict.fromkeys(frame["linearisation"]))
    aside = aside_of(frame)
    panels = [
        _heat(shown[shown["linearisation"] == name], layers, tokens, name == names[-1], aside, colour).properties(
            title=draw.heading(name)
        )
        for name in names
    ]
    title = alt.TitleParams(
        f"Sensitivity of {words} to every token at every layer",
        subtitle=[
            "Layer 0: the embeddings. Blank: exactly zero, as above the last block for every token but the last.",
            *notes(aside),
        ],
    )
    return axes.themed(alt.vconcat(*panels, title=title, spacing=18).resolve_scale(color="shared"))


def _log_colour(values: Column, title: str) -> alt.Color:
    _, ticks = axes.log_axis(values, None)
    legend = alt.Legend(
        title=f"{title} (log scale)",
        orient="bottom",
        direction="horizontal",
        gradientLength=320,
        values=ticks["values"],
        labelExpr=ticks["labelExpr"],
    )
    domain = [float(values.min()), float(values.max())]
    return alt.Color("value:Q", scale=alt.Scale(type="log", scheme="viridis", domain=domain), legend=legend)


def _heat(
    rows: Frame, layers: list[int], tokens: list[str], labelled: bool, aside: list[int], colour: alt.Color
) -> Any:
    data = _drawn(rows, "value").assign(layer=[str(layer) for layer in rows["layer"]])
    data = data.assign(start=data["position"] - 0.5, end=data["position"] + 0.5)
    order = [str(layer) for layer in reversed(layers)]
    chart, height = draw.rows(data).mark_rect(), max(90, min(22 * len(layers), 480))
    chart = chart.encode(
        x=axes.token_axis(tokens, labelled=labelled, field="start", margin=0.5, aside=aside),
        x2="end:Q",
        y=alt.Y("layer:N", scale=alt.Scale(domain=order), title="layer l", axis=alt.Axis(ticks=False)),
        color=colour,
        tooltip=["layer:N", "position:Q", "token:N", draw.VALUE],
    )
    return underlined(chart, aside, height).properties(width=620, height=height)
