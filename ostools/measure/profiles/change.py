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

import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure.bounds.bounds import Bounds
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.prompts import agreeing, named_by, partners
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
    methods = [result.frame.get("method") for result in (first, second)]
    is_exact = all(method is None or bool((method == "exact").all()) for method in methods)
    norms = ("operator", "frobenius") if is_exact else ("frobenius",)
    first_rows, second_rows = _long(first, norms), _long(second, norms)
    if corresponding:
        second_rows = _at_partners(first_rows, second_rows)
    else:
        _require_same_tokens(first, second)
    names = ["source", "norm", "layer", "last"]
    _require_same_groups(first_rows[names], second_rows[names])
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
    ours, theirs = (
        list(zip(result.provenance.token_ids or (), texts, strict=False))
        for result in (first, second)
        for texts in [frame_of(result).drop_duplicates("position").sort_values("position")["token"]]
    )
    if ours == theirs:
        return
    found = f"{len(ours)} tokens and {len(theirs)}"
    if len(ours) == len(theirs):
        at = agreeing(ours, theirs)
        texts = (f"{text!r} (id {index})" for index, text in (ours[at], theirs[at]))
        found = f"{' and '.join(texts)} at position {at}"
    raise InputError(
        f"compare: expected two results of the same tokens, found {found}: ratios are taken token by token, so measure "
        "both on one prompt, with models of one tokenizer, or give corresponding=True for those that correspond"
    )


def _require_same_groups(first: Frame, second: Frame) -> None:
    groups = [set(rows.itertuples(index=False, name=None)) for rows in (first, second)]
    if alone := sorted(groups[0] ^ groups[1], key=str):
        source, norm, layer, last = alone[0]
        raise InputError(
            f"compare: expected the same linearisations or variants, norms, layers and last tokens in both, found {source!r} "
            f"({norm} norm, layer {layer}, last token {last}) in the {'first' if alone[0] in groups[0] else 'second'} alone: "
            "measure both with the same arguments"
        )


def _at_partners(first: Frame, second: Frame) -> Frame:
    """The second's rows at the positions that their tokens have in the first, each last token
    beside the other's. Two tokenizers may have one id for two texts: a token is both.
    """
    ours, theirs = (
        list(zip(tokens["token_id"], tokens["token"], strict=True))
        for rows in (first, second)
        for tokens in [rows.drop_duplicates("position").sort_values("position")]
    )
    at = {second_position: position for position, second_position in partners(ours, theirs)}
    if not at:
        raise InputError(
            "compare: expected two prompts that begin or end with the same tokens, found none that correspond: only "
            "the norms of tokens that correspond are compared"
        )
    if first["last"].nunique() > 1 or second["last"].nunique() > 1:
        raise InputError(
            "compare: expected one last token in each with corresponding=True, found several: positions='last'"
        )
    rows = second[second["position"].isin(list(at))]
    return rows.assign(position=rows["position"].map(at), last=first["last"].iloc[0])


def _long(result: Sensitivity | Bounds, norms: Sequence[str]) -> Frame:
    """A row a token, source, norm, layer and last token, with value, lower, upper and, for the
    second, second_position.
    """
    frame = frame_of(result)
    frame = frame.assign(second_position=frame["position"].astype("Int64"))
    columns = [*named_by(frame), "second_position", "source", "layer", "last"]
    if isinstance(result, Bounds):
        rows = frame.rename(columns={"variant": "source"}).assign(layer=0)
        value = rows["value"]
        return rows[[*columns, "norm"]].assign(value=value, lower=value, upper=value)
    rows = frame.rename(columns={"linearisation": "source"})
    return by_norm(rows.assign(last=int(frame["position"].max())), columns, norms)


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
    joined = joined.assign(first=joined["value"], second=joined["value_second"])
    ratios = {
        "ratio": joined["second"] / joined["first"],
        "lower": joined["lower_second"] / joined["upper"],
        "upper": joined["upper_second"] / joined["lower"],
    }
    joined = joined.assign(**{name: ratio.where(sound) for name, ratio in ratios.items()})
    names = ["second_position", "source", "norm", "layer", "last", "first", "second"]
    return joined[[*named_by(joined), *names, "ratio", "lower", "upper"]]


def _summarise(key: Mapping[str, Any], rows: Frame) -> dict[str, Any]:
    ratio, paired_rows = rows["ratio"].dropna(), rows[rows["second"].notna()]
    norms = (paired_rows[name].to_numpy() for name in ("first", "second"))
    median = float(ratio.median())
    return {
        **key,
        "tokens": len(ratio),
        "median_ratio": median,
        "spearman": rank_correlation(*norms),
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
