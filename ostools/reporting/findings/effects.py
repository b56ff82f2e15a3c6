"""Sentences on effects: of ablated parts, of removed tokens, and of the place of a token in a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ostools.ground.words import number
from ostools.measure import Faithfulness
from ostools.measure.faithfulness.faithfulness import BETWEEN
from ostools.reporting.findings import MOST, first_few, shape_sentence
from ostools.reporting.style.theme import display_token
from ostools.results import Frame, Row

if TYPE_CHECKING:
    from ostools.measure import Patching
    from ostools.measure.ablation.ablation import Ablation
    from ostools.measure.profiles.position_effect import PositionEffect

QUANTITY_WORDS = {
    "frobenius_norm": "sensitivity (Frobenius)",
    "operator_norm": "sensitivity (operator)",
    "pair_distance": "collapse distance",
    "log_probability": "log p of the answer",
}
_LEVEL = 0.05
_RANGES = 3
"""Ranges of layers in one sentence."""
_SUBJECTS = {
    "model": "The model",
    "untrained": "The same architecture before training",
    "shuffled": "With tokens shuffled",
}
"""By the names of `measure.profiles.position_effect.MODEL`, `UNTRAINED` and `SHUFFLED`."""


# --- ablation


def ablation_findings(result: Ablation) -> list[str]:
    """Whether first order may be believed, what is not believed first; then the greatest real
    effects.
    """
    effects, words = (
        [_greatest_effect(row, result.frame) for row in _least_believed_first(result)],
        beliefs(result),
    )
    half = MOST // 2 if len(effects) > 1 else 1
    note = "Predicted effects are first order, from one backward pass. Real effects are measured with the part taken out."
    return [*first_few(words, half), *first_few(effects, half), note]


def beliefs(result: Ablation) -> list[str]:
    """Whether first order may be believed, on each prompt and quantity; what is not believed first."""
    rows = _least_believed_first(result)
    return [
        f"First order of {QUANTITY_WORDS[row['quantity']]}{_where(row)} is {row['words']}."
        for row in rows
    ]


def _least_believed_first(result: Ablation) -> list[Any]:
    return sorted(
        result.agreement.to_dict("records"),
        key=lambda row: {False: 0, True: 1}.get(row["believed"], 2),
    )


def _where(row: dict[Any, Any]) -> str:
    return "" if pd.isna(row["length"]) else f", n = {row['length']}, seed {row['seed']}"


def _greatest_effect(row: dict[Any, Any], frame: Any) -> str:
    rows = frame[(frame["quantity"] == row["quantity"]) & (frame["target"] == row["largest"])]
    for column in ("task", "length", "seed"):
        rows = rows[rows[column].isna() if pd.isna(row[column]) else rows[column] == row[column]]
    greatest, n_moved, rank = rows.iloc[0], row["moved"], row["spearman"]
    text = (
        f"{QUANTITY_WORDS[row['quantity']]}{_where(row)}: {greatest['value']:.4g} with nothing taken out; the greatest real "
        f"effect is that of {row['largest']}, {greatest['effect']:+.3g} (predicted {greatest['predicted_effect']:+.3g})"
    )
    if not n_moved:
        return f"{text}. The parts do not have any effect."
    signs, near = round(row["same_sign"] * n_moved), round(row["within_factor_2"] * n_moved)
    correlation = "" if rank != rank else f", rank correlation {rank:.2f}"
    return f"{text}. First order has {signs} of {n_moved} signs right, {near} within a factor of 2{correlation}."


# --- faithfulness


def faithfulness_findings(result: Faithfulness) -> list[str]:
    """How the first profile ranks what removing tokens changes, and whether its order loses the
    answer sooner.
    """
    name = str(result.provenance.parameters["profiles"][0])
    ways = [
        f"Tokens {way}: the rank correlation of {name} with the change of y is {_rank(result, way, name, 'y_change')}. With "
        f"the change of log p it is {_rank(result, way, name, 'log_prob_drop')}. {_area(result, way, name)}"
        for way in result.provenance.parameters["ways"]
    ]
    note = "as of independent tokens. Neighbouring tokens are alike, so it is too narrow."
    return [
        answer_finding(result),
        *first_few(ways, MOST - 2),
        f"In brackets: the 95% interval, {note}",
    ]


def answer_finding(result: Faithfulness) -> str:
    """The answer that is lost, and its log probability."""
    parameters = result.provenance.parameters
    difference = isinstance(parameters["logit"], Sequence)
    return (
        f"The answer is {parameters['token']!r}: {'difference of ' * difference}log p {parameters['log_prob']:.3g} with every "
        "token in place."
    )


def _rank(result: Faithfulness, way: str, name: str, effect: str) -> str:
    table: Frame = result.correlations
    rows = table[(table["way"] == way) & (table["profile"] == name) & (table["effect"] == effect)]
    row: Any = rows[rows["kept"] == BETWEEN].iloc[0]
    return f"{row['spearman']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def _area(result: Faithfulness, way: str, name: str) -> str:
    table: Frame = result.areas
    row: Any = table[(table["way"] == way) & (table["order"] == name)].iloc[0]
    sooner = "the answer is lost sooner than in random order"
    if row["p"] > _LEVEL:
        sooner = f"it is not shown that {sooner}"
    return (
        f"Tokens {way} in the order of {name}, largest first: {sooner} (AOPC {row['aopc']:.3g}, random {row['random']:.3g}, "
        f"p {row['p']:.2g})."
    )


# --- position


def contrast_words(result: PositionEffect) -> list[str]:
    """For each source, the outer thirds' norm over the middle third's, with 95% intervals."""
    rows: Frame = result.contrasts.set_index("source")
    return [
        f"{subject}: first third {_times(rows.loc[source], 'start')}, last third {_times(rows.loc[source], 'end')}."
        for source, subject in _SUBJECTS.items()
        if source in rows.index
    ]


def position_findings(result: PositionEffect) -> list[str]:
    """The shape of the model's profile, the two contrasts, and what the untrained model shows."""
    rows: Frame = result.contrasts.set_index("source")
    over = (
        f"Over {int(rows.loc['model', 'passages'])} passages of {result.provenance.parameters['tokens']} tokens, each in three "
        "rotations, so that every token stands once in each third. Times the middle third's norm (95% interval over passages): "
    )
    learnt = f" {_learnt(rows.loc['model minus untrained'])}" if "untrained" in rows.index else ""
    return [
        shape_sentence(result.verdict, "a text"),
        f"{over}{' '.join(contrast_words(result))}{learnt}",
    ]


def _times(row: Row, end: str) -> str:
    value, low, high = (
        number(10.0 ** float(row[f"{end}{suffix}"])) for suffix in ("", "_low", "_high")
    )
    return f"{value}× [{low}, {high}]"


def _learnt(row: Row) -> str:
    """Which of the two contrasts training changed."""
    words = {"start": "the first third", "end": "the last third"}
    changed = [
        words[end] for end in words if float(row[f"{end}_low"]) > 0 or float(row[f"{end}_high"]) < 0
    ]
    if not changed:
        return "That training changed this is not shown."
    return (
        f"Training changed {' and '.join(changed)}: the interval of the difference excludes zero."
    )


# --- patching


def patching_findings(result: Patching) -> list[str]:
    """Where the answer is carried in each direction, whether the two runs have the two answers, and
    whether first order may be believed."""
    table: Frame = result.frame
    table, what = (
        table[table["quantity"] != "log_probability"],
        result.provenance.parameters["what"],
    )
    logit = patched_logit(table)
    sentences = []
    for direction, rows in table.groupby("direction", sort=False):
        words = _carried(rows) if what == "residual" else [_greatest(rows)]
        sentences.append(
            f"Measured, {direction}, share of the gap in the logit {logit}: {', '.join(words)}."
        )
    clean, corrupt = table[["clean", "corrupt"]].iloc[0]
    wrong = (
        ""
        if not table["against"].iloc[0] or clean > 0 > corrupt
        else ": the two runs do not have the two answers"
    )
    sentences.append(
        f"The gap is from {number(clean)} (clean) to {number(corrupt)} (corrupt){wrong}."
    )
    if table["predicted_effect"].notna().all():
        verdicts = [
            row
            for row in result.agreement.to_dict("records")
            if row["quantity"] != "log_probability"
        ]
        sentences += [f"First order, {row['direction']}, is {row['words']}." for row in verdicts]
    return sentences[:MOST]


def patched_logit(table: Any) -> str:
    """The logit that is scored, or the difference."""
    answer, against = table[["answer", "against"]].iloc[0]
    return f"“{display_token(answer)}”" + (f" − “{display_token(against)}”" if against else "")


def _greatest(rows: Any) -> str:
    """The part with the greatest share."""
    row = rows.loc[rows["share"].abs().idxmax()]
    token = f" (“{display_token(row['token'])}”)" if row["token"] else ""
    return f"the greatest of {len(rows)} parts is {row['part']}{token}, {row['share']:.0%}"


def _carried(rows: Any) -> list[str]:
    """Which position has the greatest share, layers with the same one together; of more changes the
    longest ranges.
    """
    best = rows.loc[rows.groupby("layer")["share"].idxmax()]
    ranges = [
        group
        for _, group in best.groupby((best["positions"] != best["positions"].shift()).cumsum())
    ]
    longest = sorted(
        sorted(ranges, key=len, reverse=True)[:_RANGES], key=lambda group: group["layer"].iloc[0]
    )
    return [
        f"“{display_token(group['token'].iloc[0])}” at {group['positions'].iloc[0]} in layers {group['layer'].iloc[0]} to "
        f"{group['layer'].iloc[-1]} ({group['share'].min():.0%} to {group['share'].max():.0%})"
        for group in longest
    ]
