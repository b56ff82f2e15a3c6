"""By which factor each token's norm changed between two results of one kind."""

from __future__ import annotations

from typing import Any

from ostools.ground.errors import InputError
from ostools.measure.profiles.change import Change
from ostools.reporting.forms.curve import fitted
from ostools.reporting.forms.profile import of_tokens, profile, shown_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_NORMS = {"operator": "operator norm, second / first", "frobenius": "Frobenius norm, second / first"}


def change_chart(result: Change) -> Any:
    """The ratio second / first of each token's norm on a log axis, a panel a norm, a line a linearisation or variant; a grey
    line where nothing changed. Of several layers or last tokens the lowest layer and the last of these."""
    table = frame_of(result)
    rows: Frame = table[(table["layer"] == table["layer"].min()) & (table["last"] == table["last"].max())]
    rows = rows[rows["ratio"].notna()]
    if rows.empty:
        raise InputError(
            "a change: expected a ratio at one token at least, found none: every norm of the first is rounding"
        )
    tokens, sources = shown_tokens(table), list(dict.fromkeys(rows["source"]))
    hue = draw.hue("series", dict(zip(sources, theme.colours(sources), strict=True)))
    norms = [norm for norm in _NORMS if norm in set(rows["norm"])]
    panels = []
    for norm in norms:
        here = rows[rows["norm"] == norm]
        data = of_tokens(here, series=here["source"], value=here["ratio"].astype(float), run=_runs(here))
        data, y = fitted(data, _NORMS[norm], also=[1.0])
        same = draw.line_at("y", "value", 1.0, colour=theme.colour("float64"))
        panels.append([profile(data, tokens, y, hue, height=220, last=norm == norms[-1], below=same)])
    return draw.figure(panels, "How much each token's sensitivity changed", _notes(result, rows), between=18)


def _runs(rows: Frame) -> Any:
    """Which row of neighbours each token is in: no line leads over tokens that have no ratio."""
    return (rows.groupby("source")["position"].diff().fillna(1) != 1).cumsum()


def _notes(result: Change, rows: Frame) -> list[str]:
    differ = result.provenance.parameters["differ"]
    frame = frame_of(result)
    paired = frame[frame["second_position"].notna()]
    left_out = int(paired["ratio"].isna().sum())
    alone = frame["position"].nunique() - paired["position"].nunique()
    lines = [f"The two differ in: {', '.join(differ)}." if differ else "The two differ in neither model nor edits."]
    lines += ["Above the dotted line at 1 the second is larger."]
    lines += [f"{left_out} ratios are left out: the first norm is rounding there."] if left_out else []
    lines += [f"{alone} tokens have no partner in the second, and no ratio."] if alone else []
    return [*lines, *([axes.ZERO_NOTE] if (rows["ratio"] == 0).any() else [])]
