"""How the influence of a token falls with its distance: ||d y_j / d v_i|| over pairs of tokens, by
r = j - i.

    G(r) = median over j of ||d y_j / d v_(j-r)||        G(r) / G(0)  ~  gamma + beta (r + 1)^-p

What a causal model does at j knows of no later token: the row of j is the sensitivity of the text's
beginning that ends there. So each query costs a sketch of its beginning, half as much as pulling it
back through the whole text, and every one has the certificate of a sensitivity. Cost: `queries`
sensitivities a text, and as many for each control.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Unpack

import numpy as np
import pandas as pd
from jaxtyping import Float

from ostools.ground import (
    METHOD_KINDS,
    Count,
    InputError,
    Linearisation,
    Method,
    Position,
    Progress,
    Seed,
    TransformerBridge,
    with_progress,
)
from ostools.measure.jacobian.norms import COTANGENTS
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import full_precision, require_no_edits
from ostools.measure.passes.output import beginning, require_beginning
from ostools.measure.swept import READ_POSITION, Swept
from ostools.models import EncodingOptions, Prompt, untrained_model
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.theory.statistics.fits import FEWEST, fit_decay, power_to_a_level
from ostools.theory.statistics.intervals import expanded, fewest_at

TEXT = "text"
Control = Literal["shuffled", "untrained"]
"""The same tokens in random order; the same text, random weights."""
SHORTEST = 4
"""Tokens of a text that has a pair of tokens beside the first one, and a distance more."""
_RESAMPLES = 200
_COLUMNS = ["prompt", "source", "query", "position", "distance", "kind", "norm", "lower", "upper"]


@dataclass(frozen=True, eq=False)
class InfluenceByDistance(Result):
    """One row a pair of tokens i <= j.

    Columns: prompt (its number), source ("text", or of a control "shuffled", "untrained"), query
    (j), position (i), distance (j - i), kind ("measured" or "estimated"), norm (||d y_j / d
    v_i^(0)||_F), lower, upper (95% interval of an estimate).

    `laws`: gamma + beta (r + 1)^-p fitted to the medians of `by_distance` in the log, one row a
    source and first distance (0, or 1: without the token itself): p with its interval low to high
    over texts (bootstrap; missing of fewer than six texts, and where some draw of them has no
    law), beta, gamma (0 where a plain power law does as well), verdict and evidence of
    `theory.fits.fit_decay` (above 0: a power law fits better than an exponential), distances,
    texts. Fitted up to half of the shortest text. p is missing where these are too few, and where
    the data leave it open.
    """

    tables: ClassVar = (TableHead("laws"),)

    laws: pd.DataFrame

    @property
    def by_distance(self) -> Frame:
        """By source and distance, without the pairs of the first token, a sink: pairs, and of their
        norms the median and the quartiles low and high, over the median of distance 0."""
        table: Frame = pd.concat(
            [_relative(rows) for _, rows in self.frame.groupby("source", sort=False)]
        )
        groups = table[table["position"] > 0].groupby(["source", "distance"], sort=False)["norm"]
        columns = {"pairs": groups.size(), "median": groups.median()}
        columns |= {name: groups.quantile(part) for name, part in (("low", 0.25), ("high", 0.75))}
        return (
            pd.DataFrame(columns)
            .reset_index()
            .sort_values(["source", "distance"], ignore_index=True)
        )

    def chart(self) -> Chart:
        from ostools.reporting.charts.all_tokens import distance_chart

        return distance_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import distance_findings

        return distance_findings(self)

    @classmethod
    def of(cls, pairs: Frame, provenance: Provenance) -> "InfluenceByDistance":
        """The result of measured pairs, with its laws. Cost: some 200 fits a law, 1 or 2 seconds.

        Raises `InputError` for a pair that stands there twice: rows of several texts under one
        number.
        """
        if pairs.duplicated(["source", "prompt", "query", "position"]).any():
            raise InputError(
                "influence_by_distance: expected one row a pair of tokens, found pairs twice: "
                "rows of several texts have one number; read each length by itself"
            )
        rows = [
            {"source": source, "from_distance": first, **_law(table[table["distance"] >= first])}
            for source, rows in pairs.groupby("source", sort=False)
            for table in (_relative(rows),)
            for first in (0, 1)
        ]
        return cls(pairs, replace(provenance, rows={}), pd.DataFrame(rows))


@measurement(
    command="sensitivity distance",
    examples=(
        '--prompt "It was the best of times, it was the worst of times" --out distance.png',
        '--prompt "It was the best of times" --controls shuffled --controls untrained',
    ),
    memory=["rows"],
    untrained_by="controls",
    sweep=lambda: SWEPT,
)
def influence_by_distance(
    model: TransformerBridge,
    prompt: str | Prompt | Question | Sequence[str | Prompt | Question],
    *,
    queries: Count = 16,
    linearisation: Linearisation = "full",
    method: Method = "sketch",
    cotangents: int = COTANGENTS,
    controls: Control | Sequence[Control] = (),
    seed: Seed = 0,
    position: Position | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> InfluenceByDistance:
    """Norms ||d y_j / d v_i|| over pairs of tokens of a text, their medians by distance j - i, and
    the law by which they fall.

    Args:
        prompt: a text, a `Prompt` or a task's question, or a list of them; intervals are over
            texts.
        queries: how many positions j of each text, spread over its second half: every distance up
            to half of the text is then measured from the same j.
        linearisation, method, cotangents: as in `ost.sensitivity`.
        controls: "shuffled", the text's tokens in random order, and "untrained", random weights.
        seed: seed of the cotangents, the order and the weights.
        position: where a task's question is read, as in `collapse`.
        progress: called as progress(done, total), in percent.

    Raises `InputError` as `ost.sensitivity` does, for a text of fewer than four tokens, for an edit
    under which a text's beginning is not computed as within it, and for an edit beside "untrained".
    Cost: `queries` sensitivities of a text's beginnings, for each control once more. Source:
    docs/theory.md 2.
    """
    is_one = isinstance(prompt, str | Prompt | Question)
    texts: Any = [prompt] if is_one else prompt
    prompts = MitigatedPrompts.of("influence_by_distance", model, texts, None, position).prompts
    names = [controls] if isinstance(controls, str) else list(dict.fromkeys(controls))
    subjects = {name: _subject(name, model, prompts, seed) for name in (TEXT, *names)}
    options: dict[str, Any] = {"method": method, "cotangents": cotangents, "seed": seed}
    of_prompts = {
        str(number): {"token_ids": text.ids.tolist()}
        for number, text in enumerate(prompts, start=1)
    }
    about: dict[str, Any] = {"linearisation": linearisation, "queries": queries, "controls": names}
    provenance = Provenance.collect(model, **about, prompts=of_prompts, **options)
    tables = []
    for (source, (subject, subject_prompts)), part in with_progress(subjects.items(), progress):
        settings: Any = options | {"linearisations": [linearisation], "progress": part or False}
        tables.append(_pairs(subject, subject_prompts, queries, settings).assign(source=source))
    return InfluenceByDistance.of(pd.concat(tables, ignore_index=True)[_COLUMNS], provenance)


def _subject(
    source: str, model: TransformerBridge, prompts: Sequence[Prompt], seed: int
) -> tuple[TransformerBridge, Sequence[Prompt]]:
    """The model and the prompts of the text, or of a control."""
    if source == "untrained":
        require_no_edits("influence_by_distance", model, "an untrained model would not have it")
        return untrained_model(model, "initialised", seed=seed), prompts
    return model, [prompt.shuffled(seed) for prompt in prompts] if source == "shuffled" else prompts


def _pairs(
    model: TransformerBridge, prompts: Sequence[Prompt], count: int, options: dict[str, Any]
) -> Frame:
    """A row a pair of the texts: each query's sensitivity is that of the beginning which ends in
    it.
    """
    places = [
        (number, query)
        for number, text in enumerate(prompts)
        for query in _queries(len(text.ids), count)
    ]
    beginnings = [beginning(prompts[number], query + 1) for number, query in places]
    work = full_precision(model, "influence_by_distance")
    for text in prompts:  # of one beginning of each text it is shown
        require_beginning(work, text, _queries(len(text.ids), count)[0] + 1)
    measured = sensitivity(work, beginnings, **options)
    tables = [
        result.frame.assign(prompt=number + 1, query=query)
        for (number, query), result in zip(places, measured, strict=True)
    ]
    rows: Frame = pd.concat(tables, ignore_index=True)
    kinds = rows["method"].map(METHOD_KINDS)
    rows = rows.assign(distance=rows["query"] - rows["position"], kind=kinds)
    return rows.rename(columns=lambda name: name.removeprefix("frobenius_"))


def _queries(pos: int, count: int) -> list[int]:
    if pos < SHORTEST:
        raise InputError(
            f"influence_by_distance: expected texts of at least {SHORTEST} tokens, found {pos}"
        )
    return np.unique(np.linspace(pos // 2, pos - 1, count).round().astype(int)).tolist()


def _relative(pairs: Frame) -> Frame:
    """The pairs of one source with norms over the median of a token's own."""
    return pairs.assign(norm=pairs["norm"] / pairs["norm"][pairs["distance"] == 0].median())


def _law(pairs: Frame) -> dict[str, object]:
    """The fit of the pairs of one source, and its interval over texts."""
    curves = _curves(pairs[pairs["position"] > 0])
    # Beyond every window nothing reaches y_j: a law of the log ends there.
    curves = curves[..., : np.append((curves == 0).any((0, 1)), True).argmax()]
    distances = float(pairs["distance"].min()) + 1.0 + np.arange(curves.shape[-1])
    row: dict[str, object] = dict.fromkeys(("p", "low", "high", "beta", "gamma"), np.nan)
    counts = {"distances": curves.shape[-1], "texts": len(curves)}
    row |= counts | {"evidence": np.nan, "verdict": "too few"}
    values = np.nanmedian(curves, axis=(0, 1))
    if len(values) < FEWEST:
        return row
    law, decay = power_to_a_level(distances, values), fit_decay(distances, values)
    row |= {"evidence": decay.evidence, "verdict": decay.verdict}
    if law is not None:
        low, high = _over_texts(curves, distances)
        fitted = {"p": law.rate, "beta": float(np.exp(law.log_amplitude)), "gamma": law.level}
        row |= fitted | {"low": low, "high": high}
    return row


def _curves(pairs: Frame) -> Float[np.ndarray, "text query distance"]:
    """The norms of every query by distance, up to half of the shortest text; NaN where there is no
    such pair.
    """
    longest = int(pairs.groupby("prompt")["query"].max().min()) // 2
    near_pairs = pairs[pairs["distance"] <= longest]
    wide = near_pairs.pivot_table(index=["prompt", "query"], columns="distance", values="norm")
    by_text = [rows.to_numpy(dtype=float) for _, rows in wide.groupby(level="prompt")]
    most = max(map(len, by_text))
    return np.stack(
        [np.pad(rows, ((0, most - len(rows)), (0, 0)), constant_values=np.nan) for rows in by_text]
    )


def _over_texts(
    curves: Float[np.ndarray, "text query distance"], distances: Float[np.ndarray, " distance"]
) -> tuple[float, float]:
    """The 95% interval of p by the bootstrap: texts are drawn anew, and the law is fitted to their
    medians.
    """
    texts = len(curves)
    if texts < fewest_at(0.95):
        return np.nan, np.nan
    draws = np.random.default_rng(0).integers(texts, size=(_RESAMPLES, texts))
    laws = [power_to_a_level(distances, np.nanmedian(curves[draw], axis=(0, 1))) for draw in draws]
    # Of one draw without a law there is no interval.
    rates = [np.nan if law is None else law.rate for law in laws]
    wide = expanded(0.95, texts)
    low, high = np.quantile(rates, [(1 - wide) / 2, (1 + wide) / 2])
    return float(low), float(high)


SWEPT = Swept(
    read=InfluenceByDistance.of,
    options={"queries": None, "linearisation": None, "cotangents": None, **READ_POSITION},
    draws=lambda options: "by seed",
)
