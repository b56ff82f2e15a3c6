"""Two results of one kind, token by token: before and after an edit, of two models, of two dtypes.

Their ratio means something only where both are the same quantity: the same tokens, and each row of
the one beside that row of the other that has its linearisation (or variant), norm, layer and last
token. Everything else may differ, and is told. Of two prompts with other tokens, where that is
asked for, only the tokens with which both begin and both end have a ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure.bounds.bounds import Bounds
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.prompts import named_by, partners
from ostools.mitigations.named import NONE
from ostools.results import Chart, Frame, Provenance, Result, frame_of
from ostools.theory.profiles import rank_correlation

ROUNDING = {"float32": 1e-4, "float64": 1e-9}
"""Measured norms come from Jacobians of that dtype (of a 16-bit model in float32): closer ones are
the same number.
"""
_KEYS = ["source", "norm", "layer", "last", "position"]
_SAME = {
    "weight_hash": "weights",
    "config_hash": "configuration",
    "dtype": "dtype",
    "device": "device",
}


@dataclass(frozen=True, eq=False)
class Change(Result):
    """The norms of two results of one kind, and their ratio.

    `frame`, one row a token of the first and source: position, token_id, token, origin,
    second_position (of the same token in the second; NA where it has none there, and with it second
    and ratio), source (the linearisation of a measured norm, the variant of a path sum), norm,
    layer, last (the position whose y is meant), first, second, ratio (second / first), lower and
    upper: where the ratio lies, both equal to it for exact norms; of estimates at the confidence of
    both. NA where the first is below its rounding, 1e-7 of its largest norm in float32: the ratio
    would be one of rounding errors.

    `summary`, one row a source, norm, layer and last: tokens (with a ratio), median_ratio,
    spearman (rank correlation of the two profiles; NA where one is flat).

    The provenance is the first one's; `parameters["second"]` is the whole of the second one's, and
    `parameters["differ"]` names what differs between the two: weights, configuration, dtype,
    device, edits, tokens, mitigation. An empty list: nothing of these.
    """

    summary: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import change_chart

        return change_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import change_findings

        return change_findings(self)


def change(
    first: Sensitivity | Bounds, second: Sensitivity | Bounds, corresponding: bool = False
) -> Change:
    """Join the two, row by row. Raises `InputError` for another position= or logit=, a row without
    its partner, and other tokens; where `corresponding`, for two prompts of which no token
    corresponds.
    """
    for name in ("position", "logit"):
        values = [result.provenance.parameters.get(name) for result in (first, second)]
        if values[0] != values[1]:
            raise InputError(
                f"compare: expected two results of the same {name}=, found {values[0]!r} and {values[1]!r}: they are not the "
                "same quantity"
            )
    if not corresponding:
        _require_same_tokens(first, second)
    norms = ("operator", "frobenius")
    if any(
        isinstance(result, Sensitivity) and (result.frame["method"] != "exact").any()
        for result in (first, second)
    ):
        norms = ("frobenius",)
    first_rows, second_rows = _long(first, norms), _long(second, norms)
    if corresponding:
        second_rows = _at_partners(first, second, second_rows)
    names = ["source", "norm", "layer", "last"]
    groups = [
        set(rows[names].itertuples(index=False, name=None)) for rows in (first_rows, second_rows)
    ]
    if alone := sorted(groups[0] ^ groups[1], key=str):
        source, norm, layer, last = alone[0]
        raise InputError(
            f"compare: expected the same linearisations or variants, norms, layers and last tokens in both, found {source!r} "
            f"({norm} norm, layer {layer}, last token {last}) in the {'first' if alone[0] in groups[0] else 'second'} alone: "
            "measure both with the same arguments"
        )
    partner = ["second_position", "value", "lower", "upper"]
    joined = first_rows.drop(columns="second_position").merge(
        second_rows[[*_KEYS, *partner]],
        on=_KEYS,
        how="left",
        suffixes=("", "_second"),
        validate="one_to_one",
    )
    frame = _ratios(joined, _floor(first))
    summary = [
        _summarise(dict(zip(names, key, strict=True)), rows)
        for key, rows in frame.groupby(names, sort=False)
    ]
    return Change(frame, _provenance(first.provenance, second.provenance), pd.DataFrame(summary))


def _require_same_tokens(first: Result, second: Result) -> None:
    ids = [result.provenance.token_ids or () for result in (first, second)]
    texts = [
        dict(zip(frame["position"], frame["token"], strict=True))
        for frame in map(frame_of, (first, second))
    ]
    if len(ids[0]) != len(ids[1]):
        raise InputError(
            f"compare: expected two results of the same tokens, found {len(ids[0])} tokens and {len(ids[1])}: ratios are taken "
            "token by token, so measure both on one prompt, or give corresponding=True for those that correspond"
        )
    at = [
        i
        for i, pair in enumerate(zip(*ids, strict=True))
        if pair[0] != pair[1] or texts[0].get(i) != texts[1].get(i)
    ]
    if at:
        first_token, second_token = (
            f"{text.get(at[0])!r} (id {row[at[0]]})" for text, row in zip(texts, ids, strict=True)
        )
        raise InputError(
            f"compare: expected two results of the same tokens, found {first_token} and {second_token} at position {at[0]}: "
            "ratios are taken token by token, so measure both on one prompt, with models of one tokenizer"
        )


def _at_partners(first: Sensitivity | Bounds, second: Sensitivity | Bounds, rows: Frame) -> Frame:
    """The second's rows at the positions that their tokens have in the first, each last token
    beside the other's.
    """
    pairs = partners(*(_tokens(result) for result in (first, second)))
    if not pairs:
        raise InputError(
            "compare: expected two prompts that begin or end with the same tokens, found none that correspond: only "
            "the norms of tokens that correspond are compared"
        )
    lasts = [set(_long(result)["last"]) for result in (first, second)]
    if any(len(partner_rows) > 1 for partner_rows in lasts):
        raise InputError(
            "compare: expected one last token in each with corresponding=True, found several: positions='last'"
        )
    at = {theirs: ours for ours, theirs in pairs}
    (last,) = lasts[0]
    paired_rows = rows[rows["position"].isin(list(at))]
    return paired_rows.assign(position=paired_rows["position"].map(at), last=last)


def _tokens(result: Sensitivity | Bounds) -> list[tuple[int, str]]:
    """Every token by its id and its text: two tokenizers may have one id for two texts."""
    rows = frame_of(result).drop_duplicates("position").sort_values("position")
    return list(zip(rows["token_id"].tolist(), rows["token"].tolist(), strict=True))


def _long(result: Sensitivity | Bounds, norms: Sequence[str] = ("frobenius",)) -> Frame:
    """A row a token, source, norm, layer and last token, with value, lower, upper and, for the
    second, second_position.
    """
    frame = frame_of(result)
    frame = frame.assign(second_position=frame["position"].astype("Int64"))
    name_columns = [*named_by(frame), "second_position"]
    if isinstance(result, Bounds):
        rows = frame.rename(columns={"variant": "source"})[
            [*name_columns, "source", "norm", "last", "value"]
        ]
        return rows.assign(layer=0, lower=rows["value"], upper=rows["value"])
    rows = frame.rename(columns={"linearisation": "source"}).assign(
        last=int(frame["position"].max())
    )
    return by_norm(rows, [*name_columns, "source", "layer", "last"], norms)


def by_norm(
    rows: Frame, columns: Sequence[str], norms: Sequence[str] = ("operator", "frobenius")
) -> Frame:
    """Rows of a sensitivity norm by norm: these columns, and norm, value, lower, upper."""
    tables = [
        rows[list(columns)].assign(
            norm=norm,
            value=rows[f"{norm}_norm"],
            lower=rows[f"{norm}_lower"],
            upper=rows[f"{norm}_upper"],
        )
        for norm in norms
    ]
    return pd.concat(tables, ignore_index=True)


def _floor(result: Sensitivity | Bounds) -> float:
    """Relative to the largest norm: what is below is rounding. A path sum is a sum of numbers that
    are not negative.
    """
    if isinstance(result, Bounds):
        return 0.0
    return 1e-3 * ROUNDING.get(str(result.provenance.model["dtype"]), ROUNDING["float32"])


def _ratios(joined: Frame, floor: float) -> Frame:
    largest = joined.groupby(["source", "norm", "layer", "last"])["value"].transform("max")
    sound = (joined["value"] > floor * largest) & (joined["value"] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = {
            "ratio": joined["value_second"] / joined["value"],
            "lower": joined["lower_second"] / joined["upper"],
            "upper": joined["upper_second"] / joined["lower"],
        }
    columns = {name: ratio.where(sound) for name, ratio in ratios.items()}
    ratio_rows = joined.assign(first=joined["value"], second=joined["value_second"], **columns)
    return ratio_rows[
        [
            *named_by(joined),
            "second_position",
            "source",
            "norm",
            "layer",
            "last",
            "first",
            "second",
            *columns,
        ]
    ]


def _summarise(key: Mapping[str, Any], rows: Frame) -> dict[str, Any]:
    ratio, paired_rows = rows["ratio"].dropna(), rows[rows["second"].notna()]
    return {
        **key,
        "tokens": len(ratio),
        "median_ratio": float(ratio.median()),
        "spearman": rank_correlation(
            paired_rows["first"].to_numpy(), paired_rows["second"].to_numpy()
        ),
    }


def _provenance(first: Provenance, second: Provenance) -> Provenance:
    differ = [
        word for name, word in _SAME.items() if first.model.get(name) != second.model.get(name)
    ]
    # The number of a with-block in this process says nothing of what the edit does.
    edits = [
        [edit.rpartition(" (block ")[0] for edit in provenance.edits]
        for provenance in (first, second)
    ]
    differ += ["edits"] if edits[0] != edits[1] else []
    differ += ["tokens"] if first.token_ids != second.token_ids else []
    mitigation_names = [provenance.mitigation or NONE for provenance in (first, second)]
    parameters = {**first.parameters, "differ": differ, "second": second.as_dict()}
    if mitigation_names[0] != mitigation_names[1]:
        parameters.pop("mitigation", None)  # what is said here is of both
        differ += [f"mitigation ({mitigation_names[0]}, then {mitigation_names[1]})"]
    return replace(first, parameters=parameters)
