"""Which tokens matter: the profile with the means of its thirds, the tokens by rank, full against frozen; and the sensitivity
of every layer as a heat map.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.names import known_norm
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT, Profile, places
from ostools.reporting.charts.sensitivity.over_tokens import norm_named, sensitivity_chart
from ostools.reporting.forms.bars import bars
from ostools.reporting.forms.bars import names as names_axis
from ostools.reporting.forms.curve import fitted
from ostools.reporting.forms.heat import heat, log_colour
from ostools.reporting.forms.profile import TOOLTIP, WIDTH, of_tokens, profile, shown_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.reporting.look.aside import aside as aside_of
from ostools.reporting.look.aside import notes, underlined
from ostools.results import Frame, frame_of

_RANKED = 12


def profile_chart(result: Profile) -> alt.VConcatChart:
    """The profile with the mean of each third, the tokens with the largest shares, and each linearisation over frozen.

    The thirds and the words about their contrasts are those of the profile without its first token; in a chat template, those
    of the user's text.
    """
    frame: Frame = frame_of(result)
    axes.require_finite(frame["value"], "a profile")
    names = list(dict.fromkeys(frame["linearisation"]))
    tokens = shown_tokens(frame)
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
    return draw.figure([[panel] for panel in panels], _profile_title(result), said, between=24, color="shared")


def _colour(names: list[str]) -> alt.Color:
    return draw.hue("series", dict(zip(names, theme.colours(names), strict=True)))


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


def _profile_panel(
    frame: Frame, shapes: Any, names: list[str], tokens: list[str], aside: list[int], symbol: str
) -> Any:
    rows, y = fitted(_drawn(frame, "value"), norm_named(str(frame["norm"].iloc[0]), symbol))
    tested = OF_TEXT if aside else NO_SINK
    first = frame[frame["linearisation"] == names[0]]
    thirds = _thirds(shapes, tested, first["position"].to_numpy()[places(first, tested)])
    segments = []
    if len(thirds):
        ends = draw.rows(thirds).encode(x=axes.token_axis(tokens, False, field="from"), x2="to:Q", color=_colour(names))
        told = ["series:N", "third:N", alt.Tooltip("mean:Q", format=".4g")]
        segments = [ends.mark_rule(strokeWidth=3.5, strokeCap="round").encode(y=alt.Y("mean:Q", **y), tooltip=told)]
    of = "of the text" if aside else "first token taken out"
    title = f"Thick: geometric mean of each third, {of}" if len(thirds) else "Profile"
    looks: dict[str, Any] = {"aside": aside, "last": False, "height": 240, "width": 1.2, "above": segments}
    return profile(rows, tokens, y, _colour(names), title=title, **looks)


def _thirds(shapes: Any, tested: str, positions: np.ndarray) -> Frame:
    """The three means of what is tested as horizontal segments over the tokens that they are of."""
    thirds = np.array_split(positions, 3)
    rows = []
    for row in shapes[(shapes["kept"] == tested) & shapes["middle"].notna()].to_dict("records"):
        for third, here in zip(("start", "middle", "end"), thirds, strict=True):
            ends = {"from": float(here[0]), "to": float(here[-1])}
            rows.append({"series": row["linearisation"], "third": third, "mean": 10.0 ** row[third], **ends})
    return pd.DataFrame(rows)


def _ranked_panel(frame: Frame, names: list[str], aside: list[int]) -> alt.LayerChart:
    """The tokens with the largest shares of the first linearisation, largest on top, and their shares of the others; in a chat
    template the text's."""
    rows = frame[(frame["linearisation"] == names[0]) & ~frame["position"].isin(aside)]
    top = rows.sort_values("rank").head(_RANKED)["position"].tolist()
    data = _drawn(frame[frame["position"].isin(top)], "share")
    data["name"] = [f"{token} {position}" for token, position in zip(data["token"], data["position"], strict=True)]
    labels = data.drop_duplicates("position").set_index("position")["name"]
    axis = names_axis([labels[position] for position in top], title="token and its position i")
    value = {"title": "share of the sum over all tokens", "axis": alt.Axis(format=".0%", tickCount=6)}
    marks = bars(data, axis, value, _colour(names), size=60, shape=alt.value("circle"), tooltip=TOOLTIP)
    title = draw.heading(f"The largest shares{' of the text' if aside else ''}, by {names[0]}")
    return draw.layers(*marks, width=WIDTH, height=17 * len(top), title=title)


def _ratio_panel(others: Frame, names: list[str], tokens: list[str], aside: list[int]) -> Any:
    rows, y = fitted(_drawn(others, "over_frozen"), "ratio to frozen", also=[0.5, 2.0])
    one = draw.line_at("y", "value", 1.0, dash=[3, 3])
    looks: dict[str, Any] = {"aside": aside, "height": 150, "width": 1.2, "below": one}
    return profile(
        rows, tokens, y, _colour(names), title="What freezing patterns and norm scales changes", coloured=False, **looks
    )


def _drawn(frame: Frame, column: str) -> Frame:
    return of_tokens(frame, series=frame["linearisation"].astype(str), value=frame[column].astype(float))


def _profile_title(result: Profile) -> str:
    narrowed = {"position", "logit_norm"} & result.provenance.parameters.keys()
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
    tokens, layers = shown_tokens(frame), sorted(int(layer) for layer in frame["layer"].unique())
    shown: Any = frame[frame["value"] > 0]
    symbol, words = theme.differentiated(result.provenance.parameters)
    colour = log_colour(shown["value"], norm_named(norm, symbol))
    linearisations, aside = list(dict.fromkeys(frame["linearisation"])), aside_of(frame)
    height = max(90, min(22 * len(layers), 480))
    up = names_axis([str(layer) for layer in reversed(layers)], title="layer l", field="layer")
    panels = []
    for name in linearisations:
        rows = _drawn(shown[shown["linearisation"] == name], "value")
        rows = rows.assign(layer=shown.loc[rows.index, "layer"].astype(str))
        rows = rows.assign(start=rows["position"] - 0.5, end=rows["position"] + 0.5)
        labelled = name == linearisations[-1]
        across = axes.token_axis(tokens, labelled, field="start", margin=0.5, aside=aside)
        told = ["layer:N", "position:Q", "token:N"]
        chart = alt.layer(*heat(rows, across, up, colour, told, across="end"))
        panel = underlined(chart, aside, height)
        panels.append([panel.properties(width=WIDTH, height=height, title=draw.heading(name))])
    said = "Layer 0: the embeddings. Blank: exactly zero, as above the last block for every token but the last."
    title = f"Sensitivity of {words} to every token at every layer"
    return draw.figure(panels, title, [said, *notes(aside)], between=18, color="shared")
