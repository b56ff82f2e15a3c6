"""Two sensitivities, token by token: before and after an edit, of two models, of two dtypes.

Their ratio means something only where both are the same quantity: the same tokens, and each row of
the one beside that row of the other that has its linearisation, norm and layer. Everything else may
differ, and is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ostools.ground import InputError
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.prompts import TOKEN, agreeing, named_by
from ostools.mitigations.named import NONE
from ostools.results import Chart, Frame, Provenance, Result, frame_of
from ostools.theory.profiles import acting, rank_correlation

ROUNDING = {"float32": 1e-4, "float64": 1e-9}
"""Measured norms come from Jacobians of that dtype (of a 16-bit model in float32): closer ones are
the same number.
"""
_GROUP = ["linearisation", "norm", "layer"]
_SAME = {
    "weight_hash": "weights",
    "config_hash": "configuration",
    "dtype": "dtype",
    "device": "device",
}


@dataclass(frozen=True, eq=False)
class Change(Result):
    """The norms of two sensitivities, and their ratio.

    `frame`, one row a token, linearisation, norm and layer: position, token_id, token, origin,
    linearisation, norm, layer, first, second, ratio (second / first), lower and upper: where the
    ratio lies, both equal to it for exact norms; of estimates at the confidence of both. NA where
    the first is below its rounding, 1e-7 of its largest norm in float32: the ratio would be one of
    rounding errors.

    `summary`, one row a linearisation, norm and layer: tokens (with a ratio), median_ratio,
    spearman (rank correlation of the two profiles over the tokens that reach one y; NA where one
    is flat).

    The provenance is the first one's; `parameters["second"]` is the whole of the second one's, and
    `parameters["differ"]` names what differs between the two: weights, configuration, dtype,
    device, edits, mitigation. An empty list: nothing of these.
    """

    summary: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import change_chart

        return change_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import change_findings

        return change_findings(self)


def change(first: Sensitivity, second: Sensitivity) -> Change:
    """Join the two, row by row. Raises `InputError` for another position= or logit=, other tokens,
    and a row without its partner.
    """
    for name, parameter in (("position", "position"), ("logit", "logit_ids")):
        values = [result.provenance.parameters.get(parameter) for result in (first, second)]
        # A stored pair of logits is read as a list.
        values = [list(value) if isinstance(value, tuple) else value for value in values]
        if values[0] != values[1]:
            raise InputError(
                f"compare: expected two results of the same {name}=, found {values[0]!r} and "
                f"{values[1]!r}: they are not the "
                "same quantity"
            )
    _require_same_tokens(first, second)
    is_exact = all((result.frame["method"] == "exact").all() for result in (first, second))
    norms = ("operator", "frobenius") if is_exact else ("frobenius",)
    first_rows, second_rows = (
        by_norm(table, [*named_by(table), "linearisation", "layer"], norms)
        for table in (frame_of(first), frame_of(second))
    )
    keys = [*_GROUP, "position"]
    places = [set(map(tuple, rows[keys].to_numpy())) for rows in (first_rows, second_rows)]
    if alone := places[0] ^ places[1]:
        raise InputError(
            "compare: expected the same linearisations, norms, layers and tokens in both, found in "
            f"one alone {min(alone, key=str)}: measure both with the same arguments"
        )
    joined = first_rows.merge(
        second_rows[[*keys, "value", "lower", "upper"]],
        on=keys,
        how="left",
        suffixes=("", "_second"),
        validate="one_to_one",
    )
    # Relative to the largest norm: what is below is rounding.
    dtype = str(first.provenance.model["dtype"])
    frame = _ratios(joined, 1e-3 * ROUNDING.get(dtype, ROUNDING["float32"]))
    in_reach = frame[acting(frame["first"].to_numpy(), frame["second"].to_numpy())]
    summary = [
        {
            **dict(zip(_GROUP, key, strict=True)),
            "tokens": len(ratio := rows["ratio"].dropna()),
            "median_ratio": float(ratio.median()),
            "spearman": rank_correlation(rows["first"].to_numpy(), rows["second"].to_numpy()),
        }
        for key, rows in in_reach.groupby(_GROUP, sort=False)
    ]
    return Change(frame, _provenance(first.provenance, second.provenance), pd.DataFrame(summary))


def _require_same_tokens(first: Result, second: Result) -> None:
    ours, theirs = (
        list(
            frame_of(result)[TOKEN]
            .drop_duplicates()
            .sort_values("position")
            .itertuples(index=False, name=None)
        )
        for result in (first, second)
    )
    if ours != theirs:
        raise InputError(
            f"compare: expected two results of the same tokens, found {len(ours)} and "
            f"{len(theirs)} tokens, which differ at position {agreeing(ours, theirs)}: ratios are "
            "taken token by token, so measure both on one prompt, with models of one tokenizer"
        )


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


def _ratios(joined: Frame, floor: float) -> Frame:
    largest = joined.groupby(_GROUP)["value"].transform("max")
    sound = (joined["value"] > floor * largest) & (joined["value"] > 0)
    ratios = {
        "ratio": joined["value_second"] / joined["value"],
        "lower": joined["lower_second"] / joined["upper"],
        "upper": joined["upper_second"] / joined["lower"],
    }
    joined = joined.rename(columns={"value": "first", "value_second": "second"})
    joined = joined.assign(**{name: ratio.where(sound) for name, ratio in ratios.items()})
    return joined[[*named_by(joined), *_GROUP, "first", "second", *ratios]]


def _provenance(first: Provenance, second: Provenance) -> Provenance:
    differ = [
        word for name, word in _SAME.items() if first.model.get(name) != second.model.get(name)
    ]
    # A number does not say what an edit does, and a hook of somebody else may do another thing now.
    if first.edits != second.edits or any(edit.startswith("foreign") for edit in first.edits):
        words = [[edit.partition(" (number ")[0] for edit in run.edits] for run in (first, second)]
        perhaps = "perhaps edits, of which words do not say what they do"
        differ.append(perhaps if words[0] == words[1] else "edits")
    names = [provenance.mitigation or NONE for provenance in (first, second)]
    parameters = {**first.parameters, "differ": differ, "second": second.as_dict()}
    if names[0] != names[1]:
        parameters.pop("mitigation", None)  # what is said here is of both
        differ += [f"mitigation ({names[0]}, then {names[1]})"]
    return replace(first, parameters=parameters)
