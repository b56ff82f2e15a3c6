"""Retrieval by position (Section 5, the U-shape): is a record found, and how sensitive is the last
token to it?

The prompts of one seed hold the same records and the same question; only the wanted record moves.
So positions are compared within a seed. Measured at each: whether the answer names the value, how
likely the value is (teacher-forced), and the norms ||d y_n / d v_i^(0)|| of the wanted record's
tokens i, beside those of all other tokens.

Source: Barbero et al. 2024 (arXiv 2406.04267), section 5; Liu et al. 2023 (arXiv 2307.03172),
section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch

import ostools as ost
from ostools.ground import (
    Linearisation,
    Method,
    Progress,
    TransformerBridge,
    checked_seeds,
    known_norm,
    number,
    tell,
    whole_number,
    whole_numbers,
)
from ostools.models import EncodingOptions
from ostools.paper.drawn_result import PaperResult
from ostools.results import Column, Frame, Provenance, TableHead
from ostools.tasks.retrieve import Records, RetrieveTask
from ostools.theory.statistics.intervals import bootstrap_mean, expanded, fewest_at

SEEDS = tuple(range(6))
LEVEL = 0.95
_MOST_POSITIONS = 11
_OF_ONE_TASK = (
    *("task", "mitigation", "elicitation", "lengths", "trained_length", "examples"),
    *("seeds", "measurement"),
)
"""What the provenance of one of its evaluations says of that one alone."""
_OF_ANSWERS = ["length", "seed", "tokens", "key", "answer", "kind", "correct", "log_probability"]
_COLUMNS = [
    "position",
    *_OF_ANSWERS[:6],
    "found",
    *_OF_ANSWERS[6:],
    "carriers",
    "sensitivity_mean",
    "sensitivity_others",
    "method",
]


@dataclass(frozen=True, eq=False)
class Retrieval(PaperResult):
    """`frame`: one row a position and seed. Columns: position (index of the wanted record, from 0),
    length (records), seed, tokens (of the prompt), key (the value), answer (the first line that
    names a value; where there is none the last), kind ("answered", "something else" or "cut off"),
    found (of all records' values, the first that it names is the wanted one), correct (it is that
    value and nothing else, in quotes or bare), log_probability (natural, of it in quotes; NaN of a
    model that thinks first), carriers (tokens of the wanted record), sensitivity_mean (norm of d
    y_n / d v_i^(0), the mean over them), sensitivity_others (mean over all other tokens of the
    text: of no BOS and no chat template), method ("exact" | "sketch" | "estimate").

    `ends`: one row a quantity (log_probability, log_sensitivity: natural log of sensitivity_mean)
    and end (first, last) of the positions. `difference`: its value there minus its mean over the
    positions between, averaged over seeds; low, high: the 95% interval of that over seeds (paired
    bootstrap, widened for few seeds, see `theory.intervals.expanded`); verdict: above, below,
    undecided, too few seeds, or not measured: NaN where a seed's difference has no value (a log
    probability that is NaN, the logarithm of a norm 0 of a record out of every window's reach). A U
    has both ends above. Empty for fewer than three positions.
    """

    tables: ClassVar = (
        TableHead(
            columns="found log_probability sensitivity_mean sensitivity_others", groups="position"
        ),
    )

    ends: pd.DataFrame

    def ends_words(self, quantity: str) -> list[str]:
        """Each end of a quantity in words: the difference, its interval, its verdict."""
        rows: Frame = self.ends[self.ends["quantity"] == quantity]
        return [
            f"{row['end']} {number(row['difference'])} [{number(row['low'])}, "
            f"{number(row['high'])}], {row['verdict']}"
            for row in rows.to_dict("records")
        ]


def _checked_positions(positions: Sequence[int] | None, length: int) -> list[int]:
    whole_number("retrieval: length (records)", length, 2)
    if positions is None:
        spread = np.linspace(0, length - 1, min(length, _MOST_POSITIONS))
        return sorted({round(place) for place in spread.tolist()})
    return sorted(whole_numbers("retrieval: positions", positions, 0, length - 1))


@ost.measure.measurement(
    command="evaluate retrieval",
    examples=(
        "--length 9 --seeds 0,1 --out retrieval.png",
        "--model google/gemma-7b --records uuid --length 75 --method sketch",
    ),
    lines_of=(ost.sensitivity,),
    memory=["rows"],
    sizes={"task": "retrieve-at-position"},
    checks=(_checked_positions,),
)
def retrieval(
    model: TransformerBridge,
    positions: Sequence[int] | None = None,
    length: int = 9,
    seeds: Sequence[int] = SEEDS,
    *,
    records: Records = "words",
    linearisation: Linearisation = "full",
    method: Method = "auto",
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Retrieval:
    """Retrieve one of `length` records, at every position of the wanted one: the answers, and the
    sensitivity to it.

    Args:
        positions: indices of the wanted record, from 0; None: all of them, or 11 evenly spread
            ones.
        length: number of records, at least two.
        seeds: seeds of the records and of which of them is wanted.
        records: "words" or "uuid" (Liu et al.): see `tasks.retrieve.RetrieveTask`.
        linearisation: what the sensitivity holds constant, as in `sensitivity`.
        method: how norms are taken, as in `sensitivity`. The norm is the operator norm where it is
            measured, and else the Frobenius norm, which a sketch estimates.
        progress: called as progress(done, total) with the number of prompts measured.

    How prompts are encoded: `EncodingOptions`.

    Raises `InputError` for a position at which there is no record, and for what `sensitivity`
    refuses. Cost: one exact (or estimated) sensitivity for each position and seed. The answers cost
    little beside it.
    """
    seed_list, places = checked_seeds(seeds), _checked_positions(positions, length)
    tables: list[Frame] = []
    parameters: dict[str, object] = {}
    for place in places:
        task = RetrieveTask(position=place, records=records)
        prompts = [
            ost.measure.render_prompt(model, task, length, seed=seed, **encoding)
            for seed in seed_list
        ]
        elicitation = "chat" if prompts[0].chat else "zero-shot"
        evaluation = ost.evaluate(
            model, task, lengths=[length], seeds=seed_list, elicitation=elicitation, **encoding
        )
        parameters = dict(evaluation.provenance.parameters)
        rows: Frame = evaluation.frame[_OF_ANSWERS]
        pairs = zip(rows["answer"], rows["seed"], strict=True)
        values = [task.named_answer(answer, task.items(length, seed)) for answer, seed in pairs]
        norms = []
        for prompt in prompts:
            norms.append(_norms(model, prompt, linearisation, method))
            tell(progress, len(tables) * len(seed_list) + len(norms), len(places) * len(seed_list))
        tables.append(
            rows.assign(position=place, found=rows["key"] == values).join(pd.DataFrame(norms))
        )
    frame: Frame = pd.concat(tables).sort_values("seed", kind="stable", ignore_index=True)
    norm = known_norm(frame["method"])
    columns = {
        f"wanted_{norm}_norm": "sensitivity_mean",
        f"other_{norm}_norm": "sensitivity_others",
    }
    frame = frame.rename(columns=columns)
    parameters = {
        **{name: value for name, value in parameters.items() if name not in _OF_ONE_TASK},
        **{"positions": places, "length": length, "seeds": seed_list, "records": records},
        **{"linearisation": linearisation, "norm": norm, "method": method},
    }
    provenance = Provenance.collect(model, None, measurement="retrieval", **parameters)
    return Retrieval(frame[_COLUMNS], provenance, _ends(frame))


def _norms(
    model: TransformerBridge,
    task_prompt: ost.measure.TaskPrompt,
    linearisation: Linearisation,
    method: Method,
) -> dict[str, float | int | str]:
    """Mean norms of the wanted record's tokens, and of the text's other tokens; an operator norm
    where it is measured.
    """
    profile: Frame = ost.sensitivity(
        model, task_prompt.prompt, linearisations=(linearisation,), method=method
    ).frame
    carriers = list(ost.measure.carrier_positions(model, task_prompt))
    other_tokens: Frame = ost.measure.of_text(profile.drop(index=profile.index[carriers]))
    norms = ["operator_norm", "frobenius_norm"]
    return {
        "carriers": len(carriers),
        "method": str(profile["method"].iloc[0]),
        **profile.iloc[carriers][norms].mean().add_prefix("wanted_"),
        **other_tokens[norms].mean().add_prefix("other_"),
    }


def _ends(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of `Retrieval.ends`, out of at least three positions; empty for fewer."""
    rows: list[dict[str, object]] = []
    norms: Column = frame["sensitivity_mean"]
    table: Frame = frame.assign(log_sensitivity=np.log(norms.where(norms > 0)))
    for quantity in ("log_probability", "log_sensitivity"):
        by_seed = table.pivot(index="seed", columns="position", values=quantity)
        for end, place in (("first", 0), ("last", -1)) if by_seed.shape[1] >= 3 else ():
            between = by_seed.iloc[:, 1:-1].mean(axis=1, skipna=False)
            differences = by_seed.iloc[:, place] - between
            rows.append({"quantity": quantity, "end": end} | _compared(differences))
    names = ["quantity", "end", "seeds", "difference", "low", "high", "verdict"]
    return pd.DataFrame(rows, columns=names)


def _compared(differences: Column) -> dict[str, object]:
    low, high, verdict = np.nan, np.nan, "too few seeds"
    if not np.isfinite(differences).all():
        verdict = "not measured"
    elif len(differences) >= fewest_at(LEVEL):
        samples = torch.tensor(differences.to_numpy(), dtype=torch.float64)
        ends = bootstrap_mean(samples, level=expanded(LEVEL, len(samples)))
        low, high = (float(end) for end in ends)
        verdict = "above" if low > 0 else "below" if high < 0 else "undecided"
    mean = float(differences.mean(skipna=False))
    interval = {"low": low, "high": high, "verdict": verdict}
    return {"seeds": len(differences), "difference": mean, **interval}
