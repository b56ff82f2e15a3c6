"""Is sensitivity use? What a model does without a token, held against what profiles say of that
token.

A sensitivity is a derivative: how far y_n moves for a small change of a token. Whether the model
uses the token is asked by taking it out. Purpose: a number for "sensitivity is not use", of one
prompt. Cost: for each way of taking tokens out a pass a token (`draws` of them where it is
replaced), and (profiles + orders) (steps + 1) passes for the deletion curves. All tokens before the
last are taken out; the last one is y_n's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ostools import mitigations
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import distinct
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import whole_number
from ostools.ground.words import MINUS
from ostools.hooks.sites import is_closed
from ostools.measure.faithfulness.deletion import (
    EFFECTS,
    REPLACED,
    WAYS,
    Kinds,
    Way,
    WholePrompt,
    deletion_tables,
    effects,
    without,
)
from ostools.measure.faithfulness.profiles import (
    ProfileSource,
    TokenProfile,
    profiles_of,
    require_of_model,
)
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import full_precision, require_no_edits
from ostools.measure.passes.output import logit_ids
from ostools.measure.position import predicted_token
from ostools.measure.prompts import PromptResults, named_by
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.chat import PROMPT_PROVENANCE
from ostools.models.tokens import token_text
from ostools.results import Chart, Frame, Provenance, Result, frame_of
from ostools.results.table_head import TableHead
from ostools.theory.profiles import rank_correlation
from ostools.theory.statistics.intervals import spearman_interval

NO_LAST, BETWEEN = ("without the last", "without the first and the last")
"""The tokens that a rank correlation is of."""
FEWEST_ORDERS = 19  # so that p can be 0.05


@dataclass(frozen=True, eq=False)
class Faithfulness(Result):
    """Effects of leaving out each token of a prompt, and how profiles rank them.

    `frame`, one row a token before the last and way ("removed" | "replaced" | "masked"): position,
    token_id, token, origin, way, draws (tokens that stood in its place; 1 else), y_change (||y_n -
    y'||_2), log_prob_drop (log p - log p' of the answer, in nats: above 0 the token helped it), kl
    (KL(p || p') of the next token, in nats). Of replaced tokens they are means over the draws. A
    token without another of its kind (BOS, a control token) has no "replaced" row.

    `correlations`, one row a way, effect (y_change | log_prob_drop | kl), profile and choice of
    tokens (`kept`: without the last | without the first and the last): kind, linearisation and norm
    of the profile, tokens, spearman (with the size of the effect; NaN of fewer than three tokens,
    and where either is flat), low, high (95%, as of independent tokens: neighbours are alike, so
    that it is too narrow).

    `deletion`, one row a way, order (a profile's name, largest first; "random") and number of
    tokens out (`deleted`): drop (of the log probability of the answer, in nats; the mean of random
    orders), low, high (where 95% of the random orders lie).

    `areas`, one row a way and profile: aopc (the mean of its curve, see `aopc`), random (the mean
    of random orders'), random_low, random_high (where 95% of them lie), p (the share of orders,
    this one and the random ones, that are as
    large: small where the profile finds what the answer needs better than chance).

    `provenance.parameters`: logit (the id, or two), token (its text), log_prob (of it,
    undisturbed), profiles (their names), ways, draws, orders, steps, seed.
    """

    tables: ClassVar = (
        TableHead("correlations"),
        TableHead("areas"),
    )

    correlations: pd.DataFrame
    deletion: pd.DataFrame
    areas: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.profile import faithfulness_chart

        return faithfulness_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import faithfulness_findings

        return faithfulness_findings(self)


@measurement(in_chunks=True)
def faithfulness(
    model: TransformerBridge,
    profiles: ProfileSource | Sequence[ProfileSource],
    *,
    logit: str | int | Sequence[str | int] | None = None,
    ways: Way | Sequence[Way] | None = None,
    draws: int = 4,
    orders: int = 40,
    steps: int = 12,
    seed: int = 0,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> Faithfulness:
    """Take out one token, then more and more of them: do the tokens to which profiles give large
    values matter to the answer?

    Args:
        profiles: of one prompt: `ost.sensitivity` (one profile for each linearisation),
            `ost.bounds` (one for each variant), `ost.attribution` (the sizes of its parts), or
            several of these. With sensitivities of `position=k` the answer is the token after
            position k, and path sums beside them need `positions="all"`.
        logit: the answer, as a text that is one token or as an id, or two for the difference of
            their log p; None: the token that the model, in its own dtype, ranks first. How far its
            log p falls is measured in float32, or in float64 of a float64 model.
        ways: how a token is taken out: "removed" (later tokens move up one place), "replaced" (by
            another token of the same
            kind: digits, letters or anything else, each with or without a blank before it),
            "masked" (later tokens do not attend to it, in any head). None: all three; not "masked"
            where nothing inside a block is known.
        draws: how many tokens stand in for each replaced one.
        orders: random orders of deletion, at least 19.
        steps: points of a deletion curve after its first.
        seed: seed of the draws and of the random orders.
        mitigation: the one under which the profiles were measured, and tokens are taken out.
        progress: called as progress(done, total), in percent.

    Control tokens (BOS, turn markers) stay in place in deletion curves. Raises `InputError` for
    profiles of another model or of several prompts, and while edits are active, because positions
    move. Source: arXiv 1509.06321 (AOPC).
    """
    profile_list: list[Any] = [profiles]
    if isinstance(profiles, Iterable) and not isinstance(profiles, ProfileSource | PromptResults):
        profile_list = list(profiles)
    profile_by_name, position = profiles_of(profile_list)
    if ways is None:
        ways = WAYS[:2] if is_closed(model) else WAYS
    way_names = distinct("ways", ways)
    numbers = {
        "draws": whole_number("draws", draws, 1),
        "orders": whole_number("orders", orders, FEWEST_ORDERS),
        "steps": whole_number("steps", steps, 1),
        "seed": whole_number("seed", seed),
    }
    acting = mitigations.optional(mitigation)
    whole_ids, ids, provenance = _checked_run(model, profile_list, position, acting)
    whole_prompt, tables = _deleted(
        model, ids, logit, way_names, profile_by_name, numbers, acting, progress
    )
    target, texts = (
        whole_prompt.answer,
        [token_text(model.tokenizer, token) for token in whole_prompt.answer],
    )
    answer = {"logit": target[0] if len(target) == 1 else target, "token": MINUS.join(texts)}
    answer |= {} if position is None else {"position": position}
    answer |= {"log_prob": float(whole_prompt.log_prob(whole_prompt.log_probs)), "ways": way_names}
    parameters = {**provenance.parameters, **answer, "profiles": list(profile_by_name), **numbers}
    single, deletion, areas = (
        pd.concat(parts, ignore_index=True) for parts in zip(*tables, strict=True)
    )
    frame = _token_rows(profile_list[0], single, way_names).reset_index(drop=True)
    where = replace(provenance, token_ids=whole_ids, parameters=parameters)
    return Faithfulness(frame, where, _correlations(frame, profile_by_name), deletion, areas)


def _checked_run(
    model: TransformerBridge,
    profiles: Sequence[ProfileSource],
    position: int | None,
    acting: Mitigation | None,
) -> tuple[tuple[int, ...], tuple[int, ...], Provenance]:
    """The token ids of the prompt, those up to the position that is meant, and the provenance.

    Refuses edits, and profiles of another run.
    """
    require_no_edits("faithfulness", model, "positions move where tokens are taken out")
    measured = profiles[0].provenance.parameters
    parameters = {
        name: measured[name] for name in (*PROMPT_PROVENANCE, "read_at") if name in measured
    }
    parameters |= {} if acting is None else {"mitigation": mitigations.label(acting)}
    provenance = Provenance.collect(model, **parameters)
    whole_ids = require_of_model(profiles[0], provenance)
    ids = whole_ids if position is None else whole_ids[: position + 1]
    if len(ids) < 3:
        raise InputError(
            f"faithfulness: expected a prompt of at least three tokens, found {len(ids)}: there is no order of one"
        )
    return whole_ids, ids, provenance


def _deleted(
    model: TransformerBridge,
    ids: tuple[int, ...],
    logit: str | int | Sequence[str | int] | None,
    ways: Sequence[str],
    profile_by_name: dict[str, TokenProfile],
    numbers: dict[str, int],
    acting: Mitigation | None,
    progress: Progress | None,
) -> tuple[WholePrompt, list[tuple[Any, Any, Any]]]:
    """The undisturbed prompt, and the tables of every way of taking tokens out of it."""
    if logit is not None:
        target = logit_ids(model, logit)
    else:
        with mitigations.running(model, acting):
            target = (predicted_token(model, torch.tensor(ids)),)
    work = full_precision(model, "faithfulness")
    mitigated = MitigatedPrompts.of_rewritten("faithfulness", Prompt.from_ids(model, ids), acting)
    with mitigated.acting(work):
        whole_prompt = WholePrompt.of(work, ids, target)
        measured = partial(_of_way, (work, ids, whole_prompt), Kinds.of(model), numbers)
        shares = [part_of(progress, k, k + 1, len(ways), units=100) for k in range(len(ways))]
        tables = [
            measured(way, profile_by_name, share) for way, share in zip(ways, shares, strict=True)
        ]
    return whole_prompt, tables


def _token_rows(result: ProfileSource, single: pd.DataFrame, ways: Sequence[str]) -> Frame:
    """Effects of each token beside its columns, way by way in their order."""
    tokens: Frame = frame_of(result)[named_by(frame_of(result))]
    tokens = tokens.drop_duplicates("position").dropna(subset="position")
    order = {way: index for index, way in enumerate(ways)}
    return tokens.merge(single, on="position").sort_values(
        ["way", "position"],
        key=lambda column: column.map(order) if column.name == "way" else column,
    )


def _of_way(
    undisturbed: tuple[TransformerBridge, tuple[int, ...], WholePrompt],
    kinds: Kinds,
    numbers: dict[str, int],
    way: str,
    profile_by_name: dict[str, TokenProfile],
    progress: Progress | None,
) -> tuple[Any, Any, Any]:
    """One way of taking tokens out of a prompt: a row a token, curves, areas. `undisturbed`: model,
    ids and numbers.
    """
    model, ids, whole_prompt = undisturbed
    replacements = [
        kinds.replacements(token, numbers["draws"], (numbers["seed"], i))
        for i, token in enumerate(ids[:-1])
    ]
    pairs = [
        (place, stand_in)
        for place, stand_ins in enumerate(replacements)
        for stand_in in (stand_ins if way == REPLACED else [ids[place]])
    ]
    cases = [without(ids, [place], way, {place: stand_in}) for place, stand_in in pairs]
    effect_rows = effects(model, whole_prompt, cases, part_of(progress, 0, 1, 2, units=100))
    single = pd.DataFrame(effect_rows, columns=list(EFFECTS)).assign(
        position=[place for place, _ in pairs], way=way
    )
    means: Any = single.groupby(["position", "way"], sort=False)
    table = means.mean().assign(draws=means.size()).reset_index()
    # Without a tokenizer every id has others; with one, control tokens have none, and stay.
    if not (may_go := [place for place, stand_ins in enumerate(replacements) if stand_ins]):
        raise InputError(
            "faithfulness: expected tokens before the last that can go, found control tokens alone"
        )
    values = {name: token_profile.values for name, token_profile in profile_by_name.items()}
    first_replacements = {place: replacements[place][0] for place in may_go}
    curves, areas = deletion_tables(
        may_go,
        values,
        numbers,
        lambda out: without(ids, out, way, first_replacements),
        lambda case_list: effects(
            model, whole_prompt, case_list, part_of(progress, 1, 2, 2, units=100)
        ),
    )
    areas = areas.assign(kind=[profile_by_name[name].kind for name in areas["order"]])
    return (
        table[["position", "way", "draws", *EFFECTS]],
        curves.assign(way=way),
        areas.assign(way=way),
    )


def _correlations(frame: Frame, profile_by_name: dict[str, TokenProfile]) -> pd.DataFrame:
    rows = []
    groups = [(str(way), group) for way, group in frame.groupby("way", sort=False)]
    for (way, group), token_set, effect in product(groups, (NO_LAST, BETWEEN), EFFECTS):
        part = group if token_set == NO_LAST else group[group["position"] > 0]
        size, positions = np.abs(part[effect].to_numpy()), part["position"].to_numpy()
        for name, token_profile in profile_by_name.items():
            correlation = rank_correlation(size, token_profile.values[positions])
            low, high = spearman_interval(correlation, len(part))
            about = {"way": way, "effect": effect, "profile": name, "kept": token_set}
            about |= {
                name: getattr(token_profile, name) for name in ("kind", "linearisation", "norm")
            }
            interval = {"spearman": correlation, "low": low, "high": high}
            rows.append(about | {"tokens": len(part), **interval})
    return pd.DataFrame(rows)
