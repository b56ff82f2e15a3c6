"""Which tokens a measured profile says matter, whether it is a U, and what freezing changed in it.

Everything is read off a `Sensitivity`; no model is run. The first token is the sink of most trained
models: nearly every head attends to it, whatever it says. The last token is y_n's own: its residual
stream is carried up by every skip. Both can hide what lies between them, so that every share and
every shape is given with and without. In a chat template the last token is the template's, and so
are many others: what is said of the text is said of the user's own tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from ostools.ground import (
    LINEARISATIONS,
    InputError,
    checked_name,
    known_norm,
    short_repr,
    whole_number,
)
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.prompts import named_by
from ostools.models.chat import TEXT
from ostools.results import Chart, Column, Frame, Result, TableHead
from ostools.theory import profiles as theory

ALL, NO_SINK, BETWEEN, OF_TEXT = "all", "without the sink", "without sink and last", "the text"
TOKEN_SETS = (ALL, NO_SINK, BETWEEN, OF_TEXT)
"""The tokens that a shape is of."""
_INTERVALS = ("start_contrast", "end_contrast")
_SHAPE_COLUMNS = (
    *("linearisation", "norm", "kept", "verdict", "start", "middle", "end"),
    *(f"{name}{part}" for name in _INTERVALS for part in ("", "_low", "_high", "_p")),
)


@dataclass(frozen=True, eq=False)
class Profile(Result):
    """Which tokens matter to y_n, of d y_n / d v_i^(0).

    `frame`, one row a token and linearisation: position, token_id, token, origin (whose it is, of
    `models.ORIGINS`), linearisation, method (exact | sketch | estimate), norm, value, share (of the
    sum over all tokens), share_without_sink (the first token taken out and the shares renormalised;
    NaN for it), rank (1 the largest), over_frozen (value / the same token's frozen value; NaN where
    frozen was not measured).

    `summary`, one row a linearisation: sink_share, last_share, text_share (of all the user's own
    tokens; NaN where it is not known whose the tokens are) and effective_tokens (exp of the entropy
    of the shares).

    `shapes`, one row a linearisation and choice of tokens (`kept`: all | without the sink | without
    sink and last | the text), in decades: start, middle, end (mean log10 norm of each third);
    start_contrast, end_contrast (that third minus the middle one), each with _low, _high (95%) and
    _p; verdict.
    """

    tables: ClassVar = (
        TableHead(
            "top", "linearisation position token origin value share share_without_sink over_frozen"
        ),
        TableHead("summary", "linearisation sink_share last_share text_share effective_tokens"),
        TableHead(
            "shapes", "linearisation kept verdict start middle end start_contrast end_contrast"
        ),
    )

    summary: pd.DataFrame
    shapes: pd.DataFrame

    def top(self, k: int = 10, *, linearisation: str | None = None) -> pd.DataFrame:
        """The k tokens with the largest shares, largest first; if no linearisation is named, of
        "full", or where it was not measured of the next in `ground.LINEARISATIONS`.
        """
        k = whole_number("k", k, 1)
        names = sorted(set(self.frame["linearisation"]), key=LINEARISATIONS.index)
        name = checked_name("linearisation", linearisation or names[0], names)
        rows: Frame = self.frame[self.frame["linearisation"] == name]
        return rows.sort_values("rank").head(k).reset_index(drop=True)

    def chart(self) -> Chart:
        from ostools.reporting.charts.profile import profile_chart

        return profile_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import profile_findings

        return profile_findings(self)


@measurement()
def profile(measured: Sensitivity) -> Profile:
    """The shape of a measured sensitivity over the tokens: shares, ranks, and whether it is a U,
    with and without the sink.

    Read is the operator norm of J_i = d y_n / d v_i^(0), the theorem's, or the Frobenius norm of a
    sketch, which gives only bounds of the operator norm. The column `norm` says which.

    A shape is named only if the intervals of both contrasts exclude zero. Prompts of fewer than
    `theory.profiles.SHORTEST` tokens, and profiles with exact zeros (tokens out of every window's
    reach), have no shape; their `verdict` says so. Raises `InputError` if rows of layer 0, or
    tokens, are missing, and for the rows of two prompts.
    """
    rows: Frame = measured.frame[measured.frame["layer"] == 0]
    if rows.empty:
        raise InputError(
            "profile: expected the sensitivity to the embeddings, layer 0; measure with layers=[0] "
            "or 'all'"
        )
    rows = rows.sort_values("position", kind="stable")
    for name, group in rows.groupby("linearisation"):
        if (places := group["position"].tolist()) != list(range(len(places))):
            raise InputError(
                f"profile: expected each token once in {name!r}, from position 0 on, found "
                f"{short_repr(places)}: give a whole result of one prompt"
            )
    norm = known_norm(rows["method"])
    values = rows[f"{norm}_norm"].to_numpy(dtype=float)
    table = rows[[*named_by(rows), "linearisation", "method"]].assign(norm=norm, value=values)
    frozen: Column = table[table["linearisation"] == "frozen"].set_index("position")["value"]
    parts = [_with_shares(group, frozen) for _, group in table.groupby("linearisation", sort=False)]
    shapes = [_shape(part, token_set) for part in parts for token_set in TOKEN_SETS]
    return Profile(
        pd.concat(parts, ignore_index=True),
        measured.provenance,
        pd.DataFrame(list(map(_summary, parts))),
        pd.DataFrame(shapes, columns=list(_SHAPE_COLUMNS)),
    )


def _with_shares(group: Frame, frozen: Column) -> Frame:
    """The columns of one linearisation; `frozen`: the frozen norms by position, none where they
    were not measured.
    """
    value, its_frozen = group["value"], group["position"].map(frozen)
    values = value.to_numpy()
    return group.assign(
        share=theory.shares(values),
        rank=value.rank(ascending=False, method="first").astype(int),
        share_without_sink=np.concatenate([[np.nan], theory.shares(values[1:])]),
        over_frozen=(value / its_frozen).mask((value == 0) & (its_frozen == 0), 1.0),
    )


def _which(part: Frame) -> dict[str, object]:
    return part.iloc[0][["linearisation", "norm"]].to_dict()


def _summary(part: Frame) -> dict[str, object]:
    share, is_known = part["share"].to_numpy(), not part["origin"].isna().any()
    return {
        **_which(part),
        "sink_share": float(share[0]),
        "last_share": float(share[-1]),
        "text_share": float(share[_is_text(part)].sum()) if is_known else float("nan"),
        "effective_tokens": theory.effective_tokens(share),
    }


def _is_text(part: Frame) -> np.ndarray:
    """Which tokens are the user's; all where that is not known."""
    origins = part["origin"]
    return np.ones(len(part), dtype=bool) if origins.isna().any() else (origins == TEXT).to_numpy()


def is_in(part: Frame, token_set: str) -> np.ndarray:
    """Which rows of one linearisation `token_set` names."""
    if token_set == OF_TEXT:
        return _is_text(part)
    left_out = {ALL: [], NO_SINK: [0], BETWEEN: [0, len(part) - 1]}[token_set]
    return ~part["position"].isin(left_out).to_numpy()


def _shape(part: Frame, token_set: str) -> dict[str, object]:
    """The numbers of `theory.profiles.u_shape` as columns; a verdict in words where there can be
    none.
    """
    values = part.loc[is_in(part, token_set), "value"].to_numpy()
    zeros = int((values == 0).sum())
    row: dict[str, object] = {**_which(part), "kept": token_set}
    if token_set == OF_TEXT and part["origin"].isna().any():
        return row | {"verdict": "not tested: it is not known whose the tokens are"}
    if len(values) < theory.SHORTEST:
        return row | {"verdict": f"not tested: {len(values)} tokens, {theory.SHORTEST} needed"}
    if zeros:
        return row | {"verdict": f"not tested: {zeros} of {len(values)} tokens have sensitivity 0"}
    shape = theory.u_shape(np.log10(values))
    thirds = dict(zip(("start", "middle", "end"), shape.thirds, strict=True))
    row |= {"verdict": shape.verdict, **thirds}
    for name, tested in zip(_INTERVALS, (shape.start, shape.end), strict=True):
        numbers = {"": tested.value, "_low": tested.low, "_high": tested.high, "_p": tested.p}
        row |= {f"{name}{part_of}": number for part_of, number in numbers.items()}
    return row
