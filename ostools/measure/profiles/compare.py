"""Hold bounds and predictions against the measured profile: does it hold, how loose is it, does its
shape predict?

Three different questions, always all three. Rows are joined on linearisation and norm, at the
embeddings (layer 0), and a missing partner is an error: a frozen bound says nothing about the real
derivative. An estimated norm decides only what its interval decides. Two results of one kind are
`change`'s.
"""

from dataclasses import dataclass
from typing import overload

import numpy as np
import pandas as pd

from ostools.ground import METHOD_KINDS, InputError
from ostools.measure.answers.result import AnswerDifference, Evaluation, answer_difference
from ostools.measure.bounds.bounds import Bounds
from ostools.measure.bounds.variants import variant_named
from ostools.measure.first_order import belief, log10_ratio
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.profiles.change import ROUNDING, Change, by_norm, change
from ostools.measure.prompts import TOKEN, named_by
from ostools.results import Chart, Frame, Provenance, Result, frame_of, of_earlier_version
from ostools.theory.profiles import acting, rank_correlation


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Measured, certified and the paper's values of one prompt on one axis.

    `frame`, one row a token and source: position, token_id, token, origin, source (a linearisation
    for measured rows, a variant for the others), kind (measured | estimated | certified | paper),
    linearisation, norm, value.

    `summary`, one row a variant: variant, kind, linearisation, norm, method (of the norms that it
    stands beside: exact | sketch | estimate), holds (certified variants; NA for the others, which
    promise nothing), tokens (that reach y: value or norm is not 0; the next columns are of these),
    median_log10_looseness and max_log10_looseness (log10 of value / measured; NA where the
    variant's constant is unknown), spearman (rank correlation with the measured profile, of an
    estimate its Frobenius norms; NA where a profile is flat), believed and words (of a form that is
    no bound: whether its order and size are right on this prompt, by the rules of
    `measure.first_order`, and the verdict in words; NA where an estimate does not decide; NA and ""
    for a certified bound).

    `holds` is True where the variant is nowhere below the measured norm, False where it is below
    somewhere. Beside a sketch or an estimate: True where it is nowhere below the interval's upper
    end (at the confidence of the estimate), False where it is below the lower end somewhere, else
    NA, undecided. An estimated operator norm stands at its lower end, so that looseness beside it
    is an upper limit.
    """

    summary: pd.DataFrame

    def __post_init__(self) -> None:
        super().__post_init__()
        if "tokens" not in self.summary:
            raise of_earlier_version(self, "looseness over tokens out of reach too")
        estimated = self.summary.loc[self.summary["method"] != "exact", "words"]
        if estimated.str.contains(r"size off by (?!at |more)").any():
            raise of_earlier_version(self, "forms held against one end of an interval")

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import comparison_chart

        return comparison_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.sensitivity import comparison_findings

        return comparison_findings(self)


@overload
def compare(first: Sensitivity, second: Bounds) -> Comparison: ...


@overload
def compare(first: Sensitivity, second: Sensitivity) -> Change: ...


@overload
def compare(first: Evaluation, second: Evaluation) -> AnswerDifference: ...


@measurement()
def compare(
    first: Sensitivity | Evaluation,
    second: Sensitivity | Bounds | Evaluation,
) -> Comparison | Change | AnswerDifference:
    """Compare two results: a measured profile with path sums, or two results of one kind.

    A `Sensitivity` and a `Bounds` of one run give a `Comparison`: does the bound hold, how loose is
    it, and does its shape predict the measured one? Two sensitivities (before and after an edit, of
    two models, of two dtypes) give a `Change`: the ratio of each token's norms, second / first. Two
    evaluations of the same questions give an `AnswerDifference`: the difference of their shares of
    right answers, question by question, with an exact interval.

    Raises `InputError` if a profile and path sums do not share weights, configuration, tokens and
    edits, or if the linearisation that a variant belongs to was not measured; if two sensitivities
    do not share their tokens, linearisations, norms and layers; and if two evaluations are not of
    the same questions.
    """
    if isinstance(first, Evaluation) and isinstance(second, Evaluation):
        return answer_difference(first, second)
    if isinstance(first, Sensitivity) and isinstance(second, Bounds):
        return _comparison(first, second)
    if isinstance(first, Sensitivity) and isinstance(second, Sensitivity):
        return change(first, second)
    raise InputError(
        "compare: expected a profile first, and then path sums, or two results of one kind, found "
        f"{type(first).__name__} and {type(second).__name__}: compare(profile, paths)"
    )


def _comparison(measured: Sensitivity, paths: Bounds) -> Comparison:
    require_same_run("compare", measured.provenance, paths.provenance, "the path sum")
    profile = _long(measured)
    rounding = ROUNDING.get(str(measured.provenance.model["dtype"]), ROUNDING["float32"])
    of_last = _of_the_measured(measured.provenance, paths)
    rows = []
    for variant, group in of_last.groupby("variant", sort=False):
        needed, norm = group["linearisation"].iloc[0], group["norm"].iloc[0]
        partner = profile.loc[(profile["linearisation"] == needed) & (profile["norm"] == norm)]
        if partner.empty:
            raise InputError(
                f"variant {variant!r} stands beside the {needed!r} derivative, the profile has "
                f"{', '.join(sorted(set(profile['linearisation'])))}: "
                f"measure it with sensitivity(..., linearisations=[{needed!r}])"
            )
        group, partner = (table.sort_values("position") for table in (group, partner))
        if group[TOKEN].to_numpy().tolist() != partner[TOKEN].to_numpy().tolist():
            raise InputError(
                f"compare: expected each token once in the profile and in variant {variant!r}, "
                "found others: compare whole results of one prompt"
            )
        rows.append(
            _summarise(str(variant), group, partner, variant_named(str(variant)).scaled, rounding)
        )
    bound_rows = of_last.rename(columns={"variant": "source"})
    norms = profile.assign(
        source=profile["linearisation"], kind=profile["method"].map(METHOD_KINDS)
    )
    columns = [*named_by(bound_rows), "source", "kind", "linearisation", "norm", "value"]
    frame = pd.concat([norms, bound_rows], ignore_index=True).reindex(columns=columns)
    summary = pd.DataFrame(rows).astype({"believed": "boolean"})
    return Comparison(frame, measured.provenance, summary)


def _of_the_measured(measured: Provenance, paths: Bounds) -> Frame:
    """The path sums; of a logit w^T y_n the bounds, times ||w||_2 >= ||w^T J|| / ||J||."""
    frame = frame_of(paths)
    if (norm := measured.parameters.get("logit_norm")) is None:
        return frame
    uncertified = frame.loc[frame["kind"] != "certified", "variant"]
    if len(uncertified):
        raise InputError(
            "compare: expected certified bounds alone beside the profile of a logit, found "
            f"{uncertified.iloc[0]!r}, which "
            "describes y_n and not a logit: bounds(..., variants=['local'])"
        )
    return frame.assign(value=frame["value"] * norm)


def _long(measured: Sensitivity) -> Frame:
    """A row a position, linearisation and norm of v^(0), with value, lower, upper and order: what
    its rank is taken from, of an operator norm that is not exact the Frobenius norm.
    """
    frame = frame_of(measured)
    frame = frame[frame["layer"] == 0]
    if frame.empty:
        raise InputError(
            "compare: expected the derivative at the embeddings, layer 0, which this profile "
            "lacks: measure it with "
            "sensitivity(..., layers=[0])"
        )
    table = by_norm(frame, [*named_by(frame), "linearisation", "method", "frobenius_norm"])
    order = table["value"].fillna(table["frobenius_norm"])
    # Of an operator norm that is not exact, the lower end stands for it.
    return table.assign(value=table["value"].fillna(table["lower"]), order=order)


def require_same_run(caller: str, measured: Provenance, second: Provenance, its_name: str) -> None:
    """Require the same tokens, weights, configuration, edits and mitigation; else `InputError` in
    the name of `caller`.
    """
    models = measured.model, second.model
    differ = {
        "of different prompts (their token ids differ)": measured.token_ids != second.token_ids,
        "of different models (their weight hashes differ)": models[0]["weight_hash"]
        != models[1]["weight_hash"],
        "of different configurations of the model": models[0].get("config_hash")
        != models[1].get("config_hash"),
        "under different edits of the forward pass": measured.edits != second.edits,
        "under different mitigations": measured.mitigation != second.mitigation,
    }
    for how, differs in differ.items():
        if differs:
            raise InputError(
                f"{caller}: the profile and {its_name} are {how}; measure both on one model and "
                "prompt, inside the same with-block"
            )


def _summarise(
    variant: str, group: Frame, partner: Frame, scaled: bool, rounding: float
) -> dict[str, object]:
    value, kind = group["value"].to_numpy(), group["kind"].iloc[0]
    measured, order, lower, upper = (
        partner[name].to_numpy() for name in ("value", "order", "lower", "upper")
    )
    in_reach = acting(value, upper)
    loose = pd.Series(log10_ratio(value, measured)[in_reach] if scaled else [], dtype=float)
    verdict = None if kind == "certified" else belief(value, order, lower, upper, scaled=scaled)
    return {
        "variant": variant,
        "kind": kind,
        "linearisation": group["linearisation"].iloc[0],
        "norm": group["norm"].iloc[0],
        "method": partner["method"].iloc[0],
        "holds": _holds(value, partner, rounding) if kind == "certified" else pd.NA,
        "tokens": int(in_reach.sum()),
        "median_log10_looseness": float(loose.median()),
        "max_log10_looseness": float(loose.max()),
        "spearman": rank_correlation(value[in_reach], order[in_reach]),
        "believed": pd.NA if verdict is None or verdict.believed is None else verdict.believed,
        "words": "" if verdict is None else verdict.words,
    }


def _holds(value: np.ndarray, partner: Frame, rounding: float) -> object:
    """True: nowhere below the upper end; False: somewhere below the lower end; NA: the interval
    does not decide.
    """
    lower, upper = partner["lower"].to_numpy(), partner["upper"].to_numpy()
    # Below this a measured norm is rounding of the larger ones, so that it can break no bound.
    floor = rounding * partner["value"].max() * 1e-3
    allowed = value * (1.0 + rounding) + floor
    if (upper <= allowed).all():
        return True
    return False if (lower > allowed).any() else pd.NA
