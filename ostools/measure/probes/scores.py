"""Representations of the last token of every prompt, which prompts a probe of them is trained on
and tested on, what it says of those that it had not seen, and how often that is right, with
intervals over sequences.

Those of one group are never on both sides. Three tests answer three questions and are never mixed:

- "same lengths": other sequences of the lengths that the probe was trained on;
- "interpolated": other sequences, of lengths between those that it was trained on;
- "extrapolated": other sequences, longer than all that it was trained on (the upper third of the
  lengths).

A task that draws nothing has one sequence a length: its groups are the lengths, and the first test
does not exist.

Cost of the representations: one pass over every prompt, those of one length in batches. Memory: of
each prompt the last token alone is kept, d_model numbers a site and d_vocab logits.

Linear probes of numbers: ridge regression, whose penalty is chosen on training groups.

Representations are centred and divided by one number, their root mean squared length in training: a
probe is then the same in every rotated basis, and its penalty means the same at every place. Cost:
one singular value decomposition an inner fold, and one more, whatever the number of labels and
penalties. scikit-learn is imported by the first fit: `import ostools` and every other measurement
do without.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, Progress, TransformerBridge, chunk, tell
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.contexts import captured_pass, last_position
from ostools.measure.position import ReadPrompt
from ostools.results import Frame
from ostools.theory.statistics.intervals import bootstrap_share, fewest_at, widened

Rows = Float[np.ndarray, "_ d"]
Labels = Int[np.ndarray, "prompt label"]

PENALTIES = 10.0 ** -np.arange(11)
"""Penalties a prompt: the strongest first, which stands where several are as good."""
_INNER = 3  # folds of groups by which the penalty is chosen
_CONSTANT = 1e-9  # of the mean's own length: what varies less is rounding


def coordinates(rows: Rows) -> Float[np.ndarray, "prompt _"]:
    """The rows in as many orthonormal directions as there are prompts, where they have more
    columns: a penalised probe has no part outside their span, and is the same in every basis of it.
    """
    return rows if rows.shape[1] <= len(rows) else np.asarray(np.linalg.qr(rows.T, mode="r")).T


def predicted(
    rows: Rows, labels: Labels, groups: Int[np.ndarray, " prompt"], unseen: Rows
) -> tuple[Float[np.ndarray, "other label"], Float[np.ndarray, " label"]]:
    """Fit a probe of each column of labels to these prompts; what each says of `unseen`, not
    rounded, and its penalty.

    The penalty is the one with the least error on groups that an inner probe has not seen; with
    fewer groups than folds there is nothing to choose by, and the strongest stands.
    """
    from sklearn.model_selection import GroupKFold

    mean = rows.mean(0)
    centred = rows - mean
    size = float(np.sqrt((centred**2).sum(1).mean()))
    if size <= _CONSTANT * float(np.linalg.norm(mean)):
        centred, size = np.zeros_like(centred), np.inf
    x, errors = centred / size, np.zeros((len(PENALTIES), labels.shape[1]))
    folds = min(_INNER, len(np.unique(groups)))
    for train, held_out in GroupKFold(folds).split(x, groups=groups) if folds > 1 else ():
        predictions = _ridge(x[train], labels[train], x[held_out])
        errors += ((predictions - labels[held_out]) ** 2).sum(1)
    best = errors.argmin(0)
    predictions = _ridge(x, labels, (unseen - mean) / size)
    return np.stack([predictions[c, :, k] for k, c in enumerate(best)], axis=1), PENALTIES[best]


def _ridge(x: Rows, labels: Labels, unseen: Rows) -> Float[np.ndarray, "penalty other label"]:
    """What probes of every penalty say of `unseen`, out of one decomposition."""
    mean, common = x.mean(0), labels.mean(0)
    u, s, vt = np.linalg.svd(x - mean, full_matrices=False)
    shrunk = s / (s**2 + PENALTIES[:, None] * len(x))
    return common + ((unseen - mean) @ vt.T * shrunk[:, None]) @ (u.T @ (labels - common))


EMBEDDING, MIDDLE, RESIDUAL, FINAL, LOGITS = "embedding", "residual_mid", "residual", "y", "logits"
_SITES = {
    "embedding": EMBEDDING,
    "residual_mid": MIDDLE,
    "residual_post": RESIDUAL,
    "final_norm": FINAL,
}


@dataclass(frozen=True, order=True)
class Place:
    """Place where a representation is read. `depth` orders places as the forward pass does. `layer`
    counts the blocks that are complete before it: 0 is the embedding, l is v^(l), and
    `residual_mid` of layer l lies after the attention of block l (counted from 0) and before its
    MLP."""

    depth: int
    site: str
    layer: int


Captured = Mapping[Place, Float[Tensor, "prompt _"]]
"""The representations by place, in the order of the forward pass; rows are the prompts in their
order.
"""


def captured(
    model: TransformerBridge, prompts: Sequence[ReadPrompt], progress: Progress | None = None
) -> Captured:
    """Every place at the last token of every prompt, under whatever is active, on the CPU, as the
    dtype rounded it.

    A model without a place between attention and MLP (parallel blocks) has none of those. Raises
    `InputError` for numbers that are not finite.
    """
    sites = [name for name in _SITES if name in hooks.available_sites(model)]
    last = int(model.cfg.n_layers)
    parts: dict[Place, list[Tensor]] = defaultdict(list)
    order: list[int] = []
    for batch in batches([len(prompt.ids) for prompt in prompts], False, chunk(TOKENS)):
        ids = [prompts[index].ids for index in batch]
        record, logits = captured_pass(model, ids, *sites, reduce=last_position, logits=True)
        for name in sites:
            layer_rows = record[name] if hooks.SITES[name].per_layer else {0: record[name]}
            for layer, rows in layer_rows.items():
                depth, blocks = {
                    EMBEDDING: (0, 0),
                    MIDDLE: (2 * layer + 1, layer),
                    RESIDUAL: (2 * layer + 2, layer + 1),
                    FINAL: (2 * last + 1, last),
                }[_SITES[name]]
                parts[Place(depth, _SITES[name], blocks)].append(rows.cpu())
        parts[Place(2 * last + 2, LOGITS, last)].append(logits[:, -1].cpu())
        order += batch
        tell(progress, len(order), len(prompts))
    back = torch.argsort(torch.tensor(order))
    rows_by_place = {place: torch.cat(parts[place])[back] for place in sorted(parts)}
    for place, rows in rows_by_place.items():
        if not bool(torch.isfinite(rows).all()):
            raise InputError(
                f"the representations at {place.site} (layer {place.layer}) are not finite in "
                f"{rows.dtype}: use another dtype"
            )
    return rows_by_place


SAME, BETWEEN, BEYOND = "same lengths", "interpolated", "extrapolated"
TESTS = (SAME, BETWEEN, BEYOND)
FOLDS = 3
FEWEST_GROUPS, FEWEST_LENGTHS = fewest_at(0.95), 5
"""Groups for an interval at 95%, and lengths for a test between and beyond them."""


@dataclass(frozen=True)
class Split:
    """One probe: the test it is for, and the numbers of the prompts that it is trained on and
    tested on.
    """

    test: str
    train: Int[np.ndarray, " trained"]
    held_out: Int[np.ndarray, " tested"]


def require_enough(lengths: Collection[int], groups: Collection[int], is_random: bool) -> None:
    """Raises `InputError` for too few lengths, or groups of a probe's prompts, to give intervals.
    `is_random`: groups are drawn sequences (seeds); else each length is a group of its own.
    """
    if (count := len({*lengths})) < FEWEST_LENGTHS:
        raise InputError(
            f"expected at least {FEWEST_LENGTHS} lengths, so that some lie between and beyond "
            f"those of training, found {count}; for example range(4, 33, 4)"
        )
    if (count := len({*groups})) < FEWEST_GROUPS:
        what, example = ("seeds", "range(12)") if is_random else ("lengths", "range(1, 33)")
        raise InputError(
            f"expected at least {FEWEST_GROUPS} {what}, each a sequence of its own, found {count}: "
            f"of fewer there is no interval; for example {what}={example}"
        )


def splits(
    lengths: Int[np.ndarray, " prompt"], groups: Int[np.ndarray, " prompt"], is_random: bool
) -> list[Split]:
    """Every probe's prompts, of as many as `require_enough` asks for."""
    distinct_lengths, rank = np.unique(lengths, return_inverse=True)
    distinct_groups, group = np.unique(groups, return_inverse=True)
    require_enough(distinct_lengths.tolist(), distinct_groups.tolist(), is_random)
    inner = (rank > 0) & (rank < len(distinct_lengths) - 1)
    upper = rank >= len(distinct_lengths) - max(1, len(distinct_lengths) // FOLDS)
    masks: list[tuple[str, np.ndarray, np.ndarray]] = []
    for fold in range(FOLDS):
        in_fold, out_of_fold = (group % FOLDS == fold), (group % FOLDS != fold)
        if is_random:
            masks.append((SAME, out_of_fold, in_fold))
        else:
            in_fold = out_of_fold = np.full(len(rank), True)
        left_out = inner & (rank % FOLDS == fold)
        masks.append((BETWEEN, out_of_fold & ~left_out, in_fold & left_out))
        if is_random or fold == 0:
            masks.append((BEYOND, out_of_fold & ~upper, in_fold & upper))
    return [
        Split(test, np.flatnonzero(train), np.flatnonzero(held_out))
        for test, train, held_out in masks
        if train.any() and held_out.any()
    ]


LENGTH = Place(-1, "length", 0)
"""The number of items and its square, in the place of a representation."""
DECODABLE = "decodable"
_PLACE = ["dtype", "depth", "site", "layer", "test", "control"]
_SHUFFLED = 0  # the seed of the permuted labels


def of_length(lengths: Int[np.ndarray, " prompt"]) -> Float[Tensor, "prompt 2"]:
    """n and n^2, each of spread 1."""
    n = torch.tensor(lengths).double()
    powers = torch.stack([n, n**2], dim=1)
    return (powers - powers.mean(0)) / powers.std(0)


def said_by_probes(
    prompts: pd.DataFrame,
    probes: Sequence[Split],
    representations: Captured,
    controls: Sequence[str],
) -> pd.DataFrame:
    """A row per prompt, place, test and control ("none", "shuffled"): what the probe said that had
    not seen it. `prompts`: length, seed, group and label of each; `probes`: their `splits`."""
    label, group = prompts["label"].to_numpy(), prompts["group"].to_numpy()
    permuted = label[np.random.default_rng(_SHUFFLED).permutation(len(label))]
    by_control = {"none": label, "shuffled": permuted}
    labels = np.stack([by_control[control] for control in controls], axis=1)
    tables = []
    for place, rows in representations.items():
        # The length alone lies in no layer.
        layer = pd.NA if place == LENGTH else place.layer
        about = {"depth": place.depth, "site": place.site, "layer": layer}
        x = coordinates(rows.double().numpy())
        fits = [
            predicted(x[split.train], labels[split.train], group[split.train], x[split.held_out])
            for split in probes
        ]
        for (index, control), (split, (predictions, penalties)) in product(
            enumerate(controls), zip(probes, fits, strict=True)
        ):
            table = _predictions(prompts, labels[:, index], split, predictions[:, index])
            tables.append(table.assign(penalty=penalties[index], control=control, **about))
    return pd.concat(tables, ignore_index=True).astype({"layer": "Int64"})


def _predictions(
    prompts: pd.DataFrame,
    label: Int[np.ndarray, " prompt"],
    split: Split,
    predictions: Float[np.ndarray, " tested"],
) -> pd.DataFrame:
    """What one probe of these labels said of the prompts held out."""
    trained, held_out = label[split.train], label[split.held_out]
    values, counts = np.unique(trained, return_counts=True)
    return prompts.iloc[split.held_out].assign(
        label=held_out,
        test=split.test,
        said=predictions,
        right=np.rint(predictions) == held_out,
        common=held_out == values[counts.argmax()],
        trained=len(trained),
    )


def rows_of(predictions: pd.DataFrame, is_random: bool = True) -> pd.DataFrame:
    """One row per place, test and control; columns as in `Decodability`. `is_random`: answers of
    one length differ.
    """
    all_rows: Frame = predictions
    of_length = all_rows[(all_rows["site"] == LENGTH.site) & is_random]
    by_length = of_length.groupby("test")["right"].mean().to_dict()
    groups = dict(list(all_rows.groupby(_PLACE, sort=False, dropna=False)))
    rows = []
    for (*place, test, control), place_rows in groups.items():
        shuffled = groups.get((*place, test, "shuffled")) if control == "none" else None
        key = dict(zip(_PLACE, (*place, test, control), strict=True))
        rows.append(key | _row(place_rows, shuffled, by_length.get(test, 0.0)))
    return pd.DataFrame(rows).sort_values(
        ["dtype", "control", "test", "depth"], kind="stable", ignore_index=True
    )


def _row(
    place_rows: Frame, control_rows: Frame | None, by_length: float
) -> dict[str, float | int | str]:
    right, chance = place_rows["right"].to_numpy(float), float(place_rows["common"].mean())
    groups, trained = place_rows["group"].to_numpy(), int(place_rows["trained"].min())
    low, high = interval_of(right, groups, trained)
    gained = gained_low = gained_high = np.nan
    if control_rows is not None:
        difference = right - control_rows["right"].to_numpy(float)
        gained = float(difference.mean())
        gained_low, gained_high = interval_of(difference, groups, trained, -1.0)
    finding = f"not linearly decodable from {trained} examples"
    if np.isnan(low):
        finding = f"not decided from {trained} examples"
    elif low > chance and not gained_low <= 0:
        finding = DECODABLE if low > by_length else f"as the length alone from {trained} examples"
    return {
        "trained": trained,
        "tested": len(place_rows),
        "groups": int(place_rows["group"].nunique()),
        "accuracy": float(right.mean()),
        "low": low,
        "high": high,
        "chance": chance,
        "penalty": float(place_rows["penalty"].median()),
        "selectivity": gained,
        "selectivity_low": gained_low,
        "selectivity_high": gained_high,
        "finding": finding,
    }


def interval_of(
    values: Float[np.ndarray, " prompt"],
    groups: Int[np.ndarray, " prompt"],
    trained: int,
    least: float = 0.0,
) -> tuple[float, float]:
    """Interval of the mean over prompts, groups resampled whole, `widened` for probes that were
    trained on each other's prompts (each on `trained`); within `least` and 1. NaN of fewer
    than `FEWEST_GROUPS`."""
    index = np.unique(groups, return_inverse=True)[1]
    sums = torch.tensor(np.bincount(index, weights=values))
    counts = torch.tensor(np.bincount(index)).double()
    if len(sums) < FEWEST_GROUPS:
        return np.nan, np.nan
    mean, tested = float(sums.sum() / counts.sum()), int(counts.sum())
    interval = widened(bootstrap_share(sums, counts), mean, tested=tested, trained=trained)
    return max(float(interval.low), least), min(float(interval.high), 1.0)
