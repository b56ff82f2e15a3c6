"""The laboratory: one synthetic decoder, in which positions, depth and precision are all that changes.

Purpose: what the paper leaves open. (1) How fast do representations collapse under each encoding of positions, and is the
theorem's assumption, that what positions say decays with distance, met? (2) How does depth change it? (3) Which part of low
precision hides the difference? Weights are random, as before training: what happens here is what the architecture does by
itself. Trained models are measured by `ostools.collapse`.

Cost: about 280 layers of 530 tokens in float64 for "positions", 640 for "depth" (one pass serves all depths), 360 for
"precision" (float64 references among them); docs/laboratory.md has the seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from ostools.errors import InputError, unknown_name
from ostools.experiments import decay, lab_runs
from ostools.reporting.frames import Frame
from ostools.results import Provenance, Result
from ostools.theory.distances import collapse_start
from ostools.theory.fits import Law, fit_decay, over_seeds

STUDIES = ("positions", "depth", "precision")
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
DEPTH = 4
"""Layers of the decoder in which depth is not what is studied."""
LENGTHS = tuple(range(1, 513))
SEEDS = decay.SEEDS
QUESTION = 16
FIT_FROM = 64
"""Shorter sequences are not fitted: while the copies are few, the question's tokens are most of what there is."""
ASSUMPTION_LENGTHS = tuple(2**power for power in range(4, 15))
PRECISE_ENCODINGS = ("none", "rope-10000")
"""Of the studies of depth and precision, if none are named: the encoding that meets the assumption, and the common one."""

_KEYS = ["study", "encoding", "depth", "precision", "question", "quantity"]
_FLOOR = 1e-12
"""Distances below this are float64's rounding, of vectors of norm 8."""
_NOT_FITTED = ("noise", "exact_distance")
_Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Lab(Result):
    """`frame`, one row a study, encoding, depth (layers), precision, question (tokens before the repeated one; 0, in
    "positions" only: nothing but copies), seed, quantity and length: `value`. By study:

    positions, depth: `distance` (||y_n - y*_(n+1)||_2, y after the final norm), `total_variation` (Lemma 4.1's delta between
    the last rows of n and n + 1, tokens numbered from the first, in the deepest layer; mean over heads), `shifted_variation`
    (tokens numbered from the last).
    assumption (of "positions"; one layer, `length` up to 16,384 random tokens): `score_step`, `total_variation`.
    precision: `distance` in the precision, `exact_distance` and `noise` of `ostools.experiments.lab_runs.rounding`.

    `fits`, one row a curve (geometric mean over seeds, from `fit_from` on): verdict of `ostools.theory.fits`, law, rate, low,
    high (95%, of the noise along the curve), level, power_rate, seeds_low, seeds_high (95%, Student, of the power law's rate
    over seeds: other decoders), exponential_rate, evidence (BIC, positive for the power law), used, left_out.

    `collapse`, one row an encoding, precision, question and seed of "precision": collapse_length (the smallest n0 from which
    exact_distance stays below the noise; missing: not reached).
    """

    fits: pd.DataFrame
    collapse: pd.DataFrame

    def plot(self):
        from ostools.reporting.lab_chart import lab_chart

        return lab_chart(self)


def lab(
    study: str = "all",
    *,
    encodings: Sequence[str] | None = None,
    depths: Sequence[int] = DEPTHS,
    precisions: Sequence[str] | None = None,
    lengths: Sequence[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    fit_from: int = FIT_FROM,
    progress: Callable[[int, int], None] | None = None,
) -> Lab:
    """Run a study, or all three, and fit how each curve falls.

    Args:
        study: "positions", "depth", "precision" or "all".
        encodings: names of `ostools.experiments.lab_runs.ENCODINGS`; by default all for "positions", none and rope-10000 else.
        depths: numbers of layers of "depth"; the others have 4.
        precisions: names of `ostools.experiments.lab_runs.PRECISIONS`; all by default.
        lengths: n, how often the last token is repeated.
        fit_from: the shortest length that is fitted.
        progress: told how many decoders of how many are done.

    Raises `InputError` for unknown names, lengths or depths below 1, and no or negative seeds.
    """
    chosen_lengths, chosen_seeds = decay.checked("lab", lengths, seeds)
    studies = _studies(study)
    _check_names(encodings, precisions, depths)
    plan = [
        (one, encoding, question, seed)
        for one in studies
        for encoding in encodings or (lab_runs.ENCODINGS if one == "positions" else PRECISE_ENCODINGS)
        for question in ((QUESTION, 0) if one == "positions" else (QUESTION,))
        for seed in chosen_seeds
    ]
    rows: list[Frame] = []
    for done, (one, encoding, question, seed) in enumerate(plan):
        for keys, curve in _measured(one, encoding, question, seed, chosen_lengths, depths, precisions):
            named = {"encoding": encoding, "question": question, "seed": seed} | keys
            rows.append(pd.DataFrame({"length": list(curve), "value": list(curve.values())}).assign(**named))
        if progress is not None:
            progress(done + 1, len(plan))
    frame: Frame = pd.concat(rows, ignore_index=True)[[*_KEYS[:-1], "seed", "quantity", "length", "value"]]
    provenance = Provenance.without_model(
        **{"study": study, "encodings": encodings, "depths": list(depths), "precisions": precisions},
        **{"lengths": chosen_lengths, "seeds": chosen_seeds, "fit_from": fit_from},
    )
    return Lab(frame, provenance, fits=_fits(frame, fit_from), collapse=_collapse(frame))


def _studies(study: str) -> tuple[str, ...]:
    if study == "all":
        return STUDIES
    if study not in STUDIES:
        raise unknown_name("study", study, (*STUDIES, "all"))
    return (study,)


def _check_names(encodings: Sequence[str] | None, precisions: Sequence[str] | None, depths: Sequence[int]) -> None:
    for name in encodings or ():
        lab_runs.encoding(name)
    for name in precisions or ():
        if name not in lab_runs.PRECISIONS:
            raise unknown_name("precision", name, lab_runs.PRECISIONS)
    if not len(depths) or min(depths) < 1:
        raise InputError(f"depths: expected at least 1 layer, found {min(depths) if len(depths) else 'none'}")


def _measured(
    study: str,
    encoding: str,
    question: int,
    seed: int,
    lengths: list[int],
    depths: Sequence[int],
    precisions: Sequence[str] | None,
) -> Iterator[tuple[_Row, dict[int, float]]]:
    """One decoder's curves: what they are, and value by length."""
    tokens = lab_runs.prompt(seed, question, lengths[-1] + 1)
    index = torch.tensor(lengths) - 1

    def curve(keys: _Row, values: torch.Tensor) -> tuple[_Row, dict[int, float]]:
        return keys, dict(zip(lengths, values[index].tolist(), strict=True))

    if study == "precision":
        decoder = lab_runs.random_decoder(seed, encoding, DEPTH)
        for name, quantities in lab_runs.rounding(decoder, tokens, question, precisions or lab_runs.PRECISIONS):
            keys = {"study": study, "depth": DEPTH, "precision": name}
            for quantity, values in quantities.items():
                yield curve(keys | {"quantity": quantity}, values)
        return
    wanted = sorted(set(depths)) if study == "depth" else [DEPTH]
    decoder = lab_runs.random_decoder(seed, encoding, wanted[-1])
    for depth, quantities in lab_runs.collapse_by_depth(decoder, tokens, question, wanted).items():
        keys = {"study": study, "depth": depth, "precision": "float64"}
        for quantity, values in quantities.items():
            yield curve(keys | {"quantity": quantity}, values)
    if study == "positions" and question:
        keys = {"study": "assumption", "depth": 1, "precision": "float64"}
        far = lab_runs.prompt(seed, ASSUMPTION_LENGTHS[-1] + 1, 0)
        for quantity, values in lab_runs.assumption(decoder, far, list(ASSUMPTION_LENGTHS)).items():
            yield keys | {"quantity": quantity}, dict(zip(ASSUMPTION_LENGTHS, values.tolist(), strict=False))


def _fits(frame: Frame, fit_from: int) -> pd.DataFrame:
    rows = []
    fitted = frame[~frame["quantity"].isin(_NOT_FITTED)]
    for keys, group in fitted.groupby(_KEYS, sort=False):
        # The assumption is about all distances; elsewhere the question has to be a small part first.
        kept = group if keys[0] == "assumption" else group[group["length"] >= fit_from]
        rows.append(
            dict(zip(_KEYS, keys, strict=True)) | _fit(kept.pivot(index="length", columns="seed", values="value"))
        )
    return pd.DataFrame(rows)


def _fit(curves: Frame) -> _Row:
    """The law of the geometric mean over seeds, and the power law's rates of the single ones."""
    values, lengths = curves.to_numpy(dtype=float), curves.index.to_numpy(dtype=float)
    with np.errstate(divide="ignore"):
        mean = np.exp(np.log(values).mean(axis=1)) if len(values) else np.zeros(0)
    found = fit_decay(lengths, mean, floor=_FLOOR)
    low, high = np.nan, np.nan
    if found.power is not None:
        x, log_d = np.log(lengths[: found.used]), np.log(values[: found.used])
        _, low, high = over_seeds(list(-np.polyfit(x, log_d, 1)[0]))
    law = found.law
    return {
        "fitted_from": int(lengths[0]) if len(lengths) else None,
        "verdict": found.verdict,
        "law": None if law is None else law.name,
        **{
            name: np.nan if law is None else getattr(law, name)
            for name in ("rate", "low", "high", "log_amplitude", "level")
        },
        "power_rate": _rate(found.power),
        "seeds_low": low,
        "seeds_high": high,
        "exponential_rate": _rate(found.exponential),
        "evidence": found.evidence,
        "used": found.used,
        "left_out": found.left_out,
    }


def _rate(law: Law | None) -> float:
    return np.nan if law is None else law.rate


def _collapse(frame: Frame) -> pd.DataFrame:
    """From which n on the float64 distance is below what rounding does to one representation."""
    by = ["encoding", "precision", "question", "seed"]
    rows = []
    for keys, group in frame[frame["study"] == "precision"].groupby(by, sort=False):
        curves = group.pivot(index="length", columns="quantity", values="value")
        below = (curves["exact_distance"] < curves["noise"]).tolist()
        start = collapse_start(below, [int(n) for n in curves.index])
        rows.append(dict(zip(by, keys, strict=True)) | {"collapse_length": start})
    return pd.DataFrame(rows, columns=[*by, "collapse_length"]).astype({"collapse_length": "Int64"})
