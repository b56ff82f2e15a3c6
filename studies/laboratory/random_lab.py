"""One synthetic decoder with random weights, in which positions, depth and precision are all that
changes.

Purpose: what the paper leaves open. (1) How fast do representations and attention collapse under
each encoding of positions, and is the theorem's assumption, that what positions say decays with
distance, met? (2) How does depth change it? (3) Which part of low precision hides the difference?
(4) And the first check that a review of the paper asks for: every encoding in float32 and in
bfloat16, by the L1 distance of Theorem B.3. Weights are random, as before training: what happens
here is what the architecture does by itself. `trained_lab` has trained ones.

Cost: about 280 layers of 530 tokens in float64 for "positions", 640 for "depth" (one pass serves
all depths), 360 for "precision" and 560 for "validation" (float64 references among them);
python -m studies.laboratory all takes 50 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from ostools.ground.arguments import checked_lengths, checked_seeds, whole_numbers
from ostools.ground.errors import checked_name, checked_names
from ostools.ground.progress import Progress, tell
from ostools.results import Frame, Provenance, Result
from ostools.theory.statistics.fits import Law, fit_decay, over_seeds
from studies.laboratory import runs

STUDIES = ("positions", "depth", "precision", "validation")
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
DEPTH = 4
"""Layers of the decoder in which depth is not what is studied."""
LENGTHS = tuple(range(1, 513))
SEEDS = tuple(range(5))
QUESTION = 16
FIT_FROM = 64
"""Shorter sequences are not fitted: while the copies are few, the question's tokens are most of
what there is.
"""
ASSUMPTION_LENGTHS = tuple(2**power for power in range(4, 15))
PRECISE_ENCODINGS = ("none", "rope-10000")
"""Default encodings of "depth" and "precision": the one that meets the assumption, and the common
one.
"""
PRECISIONS = {"precision": tuple(runs.PRECISIONS), "validation": ("float32", "bfloat16")}

_KEYS = ["study", "encoding", "depth", "precision", "question", "quantity"]
_FLOOR = 1e-12
"""Distances and variations up to this are float64's rounding, of vectors of norm 8 and rows that
sum to 1: copies of one token and nothing else, whose distance is 0, come out a tenth of it apart at
most, after 1 layer as after 64."""
_L1_FLOOR = 1e-10
"""Rounding of L1 distances at v^(L), whose norm grows with depth: such copies come out 5e-12 apart
after 64 layers.
"""
_LOW = {"precision": runs.QUANTITIES["l2"], "validation": runs.QUANTITIES["l1"]}
"""The studies of low precisions, and what their curves are called."""
_Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class RandomLab(Result):
    """`frame`, one row a study, encoding, depth (layers), precision, question (tokens before the
    repeated one; 0, in "positions" only: nothing but copies), seed, quantity and length: `value`,
    and `rounding`: a value up to it is rounding, and was not measured. By study:

    positions, depth: `distance` (||y_n - y*_(n+1)||_2, y after the final norm), `l1` (||v_n^(L) -
    v*_(n+1)^(L)||_1, before it, Theorem B.3's), `total_variation` (delta(alpha_n, alpha*_(n+1)) +
    alpha*_(n+1),(n+1) of B.3's proof, without a factor 1/2: the last rows of n and n + 1, tokens
    numbered from the first, in the deepest layer; mean over heads), `shifted_variation` (tokens
    numbered from the last). layers (of "positions"): the same of every layer of that decoder;
    `depth` counts it. assumption (of "positions"; one layer, `length` up to 16,384 random tokens):
    `score_step`, `total_variation`.
    precision: `distance` in the precision, `exact_distance`, `noise`, `pair_noise` of
        `runs.rounding`.
    validation: `l1` in the precision, `exact_l1`, `l1_noise`, `l1_pair_noise` of the same.

    `fits`, one row a curve (geometric mean over seeds, from `fit_from` on): verdict of
    `ostools.theory.fits`, law, rate, low, high (95%, of the noise along the curve), level,
    power_rate, seeds_low, seeds_high (95%, Student, of the power law's rate over seeds: other
    decoders), exponential_rate, evidence (BIC, positive for the power law), used, left_out. Of
    "precision" and "validation" only the exact distance (float64, weights rounded as in the
    precision) is fitted: the others are rounding, or end in it.

    `collapse`, one row a study, encoding, precision, question and seed of these two:
    collapse_length (the smallest n0 such that from there on the exact distance is below the noise
    of one representation, or the distance is exactly 0), pair_collapse (the same with the pair's
    noise, of the difference itself: what both vectors' rounding shares hides nothing), n_max (the
    longest; a missing n0 is not shown up to here). `runs.collapse_start` has the margin.
    """

    fits: pd.DataFrame
    collapse: pd.DataFrame


def random_lab(
    study: str = "all",
    *,
    encodings: Iterable[str] | None = None,
    depths: Iterable[int] = DEPTHS,
    lengths: Iterable[int] = LENGTHS,
    seeds: Iterable[int] = SEEDS,
    fit_from: int = FIT_FROM,
    progress: Progress | None = None,
) -> RandomLab:
    """Run one study of the laboratory, or all four, and fit how each curve falls.

    Args:
        study: "positions", "depth", "precision", "validation" or "all".
        encodings: names of `runs.ENCODINGS`. The default is all of them for "positions" and
            "validation", and "none" and "rope-10000" for the others.
        depths: numbers of layers for "depth". The other studies have 4 layers.
        lengths: n, how often the last token is repeated.
        fit_from: the shortest length that is fitted.
        progress: called with the number of decoders that are done, and of all.

    Raises `InputError` for unknown names, for lengths or depths that are not whole numbers from 1
    on, and for seeds that are not whole numbers from 0 on.
    """
    length_list, seed_list = checked_lengths(lengths), checked_seeds(seeds)
    depth_list = sorted(whole_numbers("depths", depths, 1))
    studies = STUDIES if study == "all" else (checked_name("study", study, (*STUDIES, "all")),)
    encodings = None if encodings is None else checked_names("encoding", encodings, runs.ENCODINGS)
    plan = [
        (name, encoding, question, seed)
        for name in studies
        for encoding in encodings
        or (PRECISE_ENCODINGS if name in ("depth", "precision") else runs.ENCODINGS)
        for question in ((QUESTION, 0) if name == "positions" else (QUESTION,))
        for seed in seed_list
    ]
    rows: list[Frame] = []
    for index, (name, encoding, question, seed) in enumerate(plan):
        for keys, curve in _measured(name, encoding, question, seed, length_list, depth_list):
            floor = _L1_FLOOR if "l1" in str(keys["quantity"]) else _FLOOR
            columns = {
                "encoding": encoding,
                "question": question,
                "seed": seed,
                "rounding": floor,
            } | keys
            rows.append(
                pd.DataFrame({"length": list(curve), "value": list(curve.values())}).assign(
                    **columns
                )
            )
        tell(progress, index + 1, len(plan))
    columns = [*_KEYS[:-1], "seed", "quantity", "length", "value", "rounding"]
    frame: Frame = pd.concat(rows, ignore_index=True)[columns]
    provenance = Provenance.without_model(
        **{"study": study, "encodings": encodings, "depths": depth_list, "lengths": length_list},
        **{"seeds": seed_list, "fit_from": fit_from},
    )
    return RandomLab(frame, provenance, fits=_fits(frame, fit_from), collapse=_collapse(frame))


def _measured(
    study: str, encoding: str, question: int, seed: int, lengths: list[int], depths: list[int]
) -> Iterator[tuple[_Row, dict[int, float]]]:
    """One decoder's curves: what they are, with their `rounding` where it is not `_FLOOR`, and
    value by length.
    """
    tokens = runs.prompt(seed, question, lengths[-1] + 1)
    index = torch.tensor(lengths) - 1

    def curve(keys: _Row, values: torch.Tensor) -> tuple[_Row, dict[int, float]]:
        return keys, dict(zip(lengths, values[index].tolist(), strict=True))

    if study in _LOW:
        decoder, norm = (
            runs.random_decoder(seed, encoding, DEPTH),
            "l2" if study == "precision" else "l1",
        )
        measured, _, _, pair_noise = runs.QUANTITIES[norm]
        for name, quantities in runs.rounding(decoder, tokens, question, PRECISIONS[study], norm):
            keys = {"study": study, "depth": DEPTH, "precision": name}
            # In a low precision, the rounding of a difference is what was measured as its noise.
            rounding = {measured: {"rounding": quantities[pair_noise][index].tolist()}}
            for quantity, values in quantities.items():
                yield curve(keys | {"quantity": quantity} | rounding.get(quantity, {}), values)
        return
    measured_depths = depths if study == "depth" else list(range(1, DEPTH + 1))
    decoder = runs.random_decoder(seed, encoding, measured_depths[-1])
    for depth, quantities in runs.collapse_by_depth(
        decoder, tokens, question, measured_depths
    ).items():
        for quantity, values in quantities.items():
            for name in _studies_of(study, depth, question):
                yield curve(
                    {"study": name, "depth": depth, "precision": "float64", "quantity": quantity},
                    values,
                )
    if study == "positions" and question:
        keys = {"study": "assumption", "depth": 1, "precision": "float64"}
        far = runs.prompt(seed, ASSUMPTION_LENGTHS[-1] + 1, 0)
        floors = {"score_step": runs.score_rounding(decoder, far), "total_variation": _FLOOR}
        for quantity, values in runs.assumption(decoder, far, list(ASSUMPTION_LENGTHS)).items():
            columns = keys | {"quantity": quantity, "rounding": floors[quantity]}
            yield columns, dict(zip(ASSUMPTION_LENGTHS, values.tolist(), strict=False))


def _studies_of(study: str, depth: int, question: int) -> list[str]:
    """Studies to which curves belong: of "positions" those at depth `DEPTH`, and of "layers" those
    with a question.
    """
    if study != "positions":
        return [study]
    return [*(["positions"] if depth == DEPTH else []), *(["layers"] if question else [])]


def _fits(frame: Frame, fit_from: int) -> pd.DataFrame:
    rows = []
    # A distance in the precision ends in its own rounding: a law of it would be rounding's.
    fitted = frame[
        ~frame["study"].isin(list(_LOW))
        | frame["quantity"].isin([exact for _, exact, _, _ in _LOW.values()])
    ]
    for keys, group in fitted.groupby(_KEYS, sort=False):
        # The assumption is about all distances; elsewhere the question has to be a small part
        # first.
        fitted_rows = group if keys[0] == "assumption" else group[group["length"] >= fit_from]
        curves = fitted_rows.pivot(index="length", columns="seed", values="value")
        rows.append(
            dict(zip(_KEYS, keys, strict=True)) | _fit(curves, floor=float(group["rounding"].max()))
        )
    return pd.DataFrame(rows)


def _fit(curves: Frame, floor: float) -> _Row:
    """The law of the geometric mean over seeds, and the power law's rates of the single ones."""
    values, lengths = curves.to_numpy(dtype=float), curves.index.to_numpy(dtype=float)
    with np.errstate(divide="ignore"):
        mean = np.exp(np.log(values).mean(axis=1)) if len(values) else np.zeros(0)
    decay = fit_decay(lengths, mean, floor=floor)
    low, high = np.nan, np.nan
    if decay.power is not None:
        x, log_d = np.log(lengths[: decay.used]), np.log(values[: decay.used])
        _, low, high = over_seeds(list(-np.polyfit(x, log_d, 1)[0]))
    law = decay.law
    return {
        "fitted_from": int(lengths[0]) if len(lengths) else None,
        "verdict": decay.verdict,
        "law": None if law is None else law.name,
        **{
            name: np.nan if law is None else getattr(law, name)
            for name in ("rate", "low", "high", "log_amplitude", "level")
        },
        "power_rate": _rate(decay.power),
        "seeds_low": low,
        "seeds_high": high,
        "exponential_rate": _rate(decay.exponential),
        "evidence": decay.evidence,
        "used": decay.used,
        "left_out": decay.left_out,
    }


def _rate(law: Law | None) -> float:
    return np.nan if law is None else law.rate


def _collapse(frame: Frame) -> pd.DataFrame:
    """From which n on the float64 distance is below what rounding does to one representation, and
    to the difference.
    """
    by = ["study", "encoding", "precision", "question", "seed"]
    rows = []
    for keys, group in frame[frame["study"].isin(list(_LOW))].groupby(by, sort=False):
        curves = group.pivot(index="length", columns="quantity", values="value")
        lengths = [int(n) for n in curves.index]
        measured, exact, *noises = _LOW[str(keys[0])]
        starts = [
            runs.collapse_start(
                ((curves[exact] < curves[noise]) | (curves[measured] == 0)).tolist(), lengths
            )
            for noise in noises
        ]
        rows.append((*keys, *starts, lengths[-1]))
    names = [*by, "collapse_length", "pair_collapse", "n_max"]
    return pd.DataFrame(rows, columns=names).astype(
        {"collapse_length": "Int64", "pair_collapse": "Int64"}
    )
