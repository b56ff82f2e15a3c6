"""Is sensitivity use? What a model does without a token, held against what profiles say of that
token.

A sensitivity is a derivative: how far y_n moves for a small change of a token. Whether the model
uses the token is asked by taking it out. Purpose: a number for "sensitivity is not use", of one
prompt. Cost: for each way of taking tokens out a pass a token (`draws` of them where it is
replaced). All tokens before the last are taken out; the last one is y_n's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from ostools import mitigations
from ostools.ground import (
    Count,
    InputError,
    Progress,
    Seed,
    TransformerBridge,
    distinct,
    with_progress,
)
from ostools.ground.names import METHOD_KINDS
from ostools.ground.words import MINUS
from ostools.hooks.sites import is_closed
from ostools.measure.bounds.bounds import Bounds
from ostools.measure.faithfulness.deletion import (
    EFFECTS,
    REPLACED,
    WAYS,
    Kinds,
    Way,
    WholePrompt,
    effects,
    without,
)
from ostools.measure.jacobian.attribution import Attribution
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import full_precision, require_no_edits
from ostools.measure.passes.output import logit_ids
from ostools.measure.position import predicted_token
from ostools.measure.profiles.compare import require_same_run
from ostools.measure.profiles.profile import profile
from ostools.measure.prompts import named_by
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.chat import PROMPT_PROVENANCE
from ostools.models.tokens import token_text
from ostools.results import Chart, Frame, Provenance, Result, TableHead, frame_of
from ostools.theory.profiles import rank_correlation
from ostools.theory.statistics.intervals import spearman_interval

NO_LAST, BETWEEN = ("without the last", "without the first and the last")
"""The tokens that a rank correlation is of."""
ProfileSource: TypeAlias = Sensitivity | Bounds | Attribution


@dataclass(frozen=True)
class TokenProfile:
    """kind: measured | estimated | certified | paper | predicted | parts; linearisation and norm
    that its values are of, or stand beside; one value a token, none negative."""

    kind: str
    linearisation: str
    norm: str
    values: Float[np.ndarray, " pos"]


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

    `provenance.parameters`: logit (the id, or two), token (its text), log_prob (of it,
    undisturbed), profiles (their names), ways, draws, seed.
    """

    tables: ClassVar = (TableHead("correlations"),)

    correlations: pd.DataFrame

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
    draws: Count = 4,
    seed: Seed = 0,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
) -> Faithfulness:
    """Take out one token after the other: do the tokens to which profiles give large values matter
    to the answer?

    Args:
        profiles: of one prompt: `ost.sensitivity` (one profile for each linearisation),
            `ost.bounds` (one for each variant), `ost.attribution` (the sizes of its parts), or
            several of these.
        logit: the answer, as a text that is one token or as an id, or two for the difference of
            their log p; None: the token that the model, in its own dtype, ranks first. How far its
            log p falls is measured in float32, or in float64 of a float64 model.
        ways: how a token is taken out: "removed" (later tokens move up one place), "replaced" (by
            another token of the same kind: digits, letters or anything else, each with or without a
            blank before it), "masked" (later tokens do not attend to it, in any head). None: all
            three; not "masked" where nothing inside a block is known.
        draws: how many tokens stand in for each replaced one.
        seed: seed of the draws.
        mitigation: the one under which the profiles were measured, and tokens are taken out.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for profiles of another model or of several prompts, and while edits are
    active, because positions move.
    """
    sources = [profiles] if isinstance(profiles, ProfileSource) else [*profiles]
    profile_by_name = _profiles(sources)
    if ways is None:
        ways = WAYS[:2] if is_closed(model) else WAYS
    way_names = distinct("ways", ways)
    acting = mitigations.optional(mitigation)
    require_no_edits("faithfulness", model, "positions move where tokens are taken out")
    measured = sources[0].provenance
    parameters = {
        name: measured.parameters[name]
        for name in (*PROMPT_PROVENANCE, "read_at")
        if name in measured.parameters
    }
    parameters |= {} if acting is None else {"mitigation": mitigations.label(acting)}
    ids = measured.token_ids or ()
    provenance = Provenance.collect(model, ids, **parameters)
    require_same_run("faithfulness", measured, provenance, "the model")
    if len(ids) < 3:
        raise InputError(
            f"faithfulness: expected a prompt of at least three tokens, found {len(ids)}: there is "
            "no order of one"
        )
    with mitigations.running(model, acting):
        is_given = logit is not None
        target = (
            logit_ids(model, logit) if is_given else (predicted_token(model, torch.tensor(ids)),)
        )
    work, kinds = full_precision(model, "faithfulness"), Kinds.of(model)
    mitigated = MitigatedPrompts.of_rewritten("faithfulness", Prompt.from_ids(model, ids), acting)
    tables = []
    with mitigated.acting(work):
        whole_prompt = WholePrompt.of(work, ids, target)
        for way, part in with_progress(way_names, progress):
            replacements = [
                kinds.replacements(token, draws, (seed, place)) if way == REPLACED else [token]
                for place, token in enumerate(ids[:-1])
            ]
            tables.append(_single_effects(work, whole_prompt, ids, way, replacements, part))
    parameters = {**provenance.parameters, **_answer_entry(model, whole_prompt, target)}
    parameters |= {"ways": way_names, "profiles": list(profile_by_name), "draws": draws}
    tokens: Frame = frame_of(sources[0])[named_by(frame_of(sources[0]))]
    tokens = tokens.drop_duplicates("position").dropna(subset="position")
    frame: Frame = pd.concat(tables, ignore_index=True).merge(tokens, on="position")
    frame = frame[[*tokens.columns, "way", "draws", *EFFECTS]]
    where = replace(provenance, parameters=parameters | {"seed": seed})
    return Faithfulness(frame, where, _correlations(frame, profile_by_name))


def _answer_entry(
    model: TransformerBridge, whole_prompt: WholePrompt, target: tuple[int, ...]
) -> dict[str, object]:
    """What the provenance says of the answer."""
    return {
        "logit": target[0] if len(target) == 1 else target,
        "token": MINUS.join(token_text(model.tokenizer, token) for token in target),
        "log_prob": float(whole_prompt.log_prob(whole_prompt.log_probs)),
    }


def _single_effects(
    model: TransformerBridge,
    whole_prompt: WholePrompt,
    ids: tuple[int, ...],
    way: str,
    replacements: Sequence[Sequence[int]],
    progress: Progress | None,
) -> pd.DataFrame:
    """A row a token before the last: position, way, draws, and its effects' mean over them."""
    places = [place for place, stand_ins in enumerate(replacements) for _ in stand_ins]
    if not places:
        raise InputError(
            "faithfulness: expected a token before the last that can be replaced, found control "
            "tokens alone"
        )
    stand_ins = [token for stand_ins in replacements for token in stand_ins]
    cases = [
        without(ids, place, way, token) for place, token in zip(places, stand_ins, strict=True)
    ]
    table = pd.DataFrame(effects(model, whole_prompt, cases, progress), columns=[*EFFECTS])
    by_place = table.assign(position=places).groupby("position")
    means: Frame = by_place.mean()
    return means.assign(way=way, draws=by_place.size()).reset_index()


def _profiles(results: Sequence[ProfileSource]) -> dict[str, TokenProfile]:
    """Profiles by name: the linearisation of a sensitivity, the variant of a path sum, or
    "attribution".

    Raises `InputError` for none, for a profile of a logit, for the same name twice, and for two
    prompts or models.
    """
    if not results:
        raise InputError(
            "faithfulness: expected at least one profile, such as ost.sensitivity(model, prompt), "
            "found none"
        )
    for result in results:
        if "logit_norm" in (parameters := result.provenance.parameters):
            # The parts of a logit (`attribution`) have a `logit` too.
            raise InputError(
                "faithfulness: expected a profile of all of y_n, found one with "
                f"logit={parameters['logit']!r}: measure it without logit"
            )
        whose = "another that was given"
        require_same_run("faithfulness", results[0].provenance, result.provenance, whose)
    profiles = [pair for result in results for pair in _named_profiles(result).items()]
    names = [name for name, _ in profiles]
    if len(set(names)) < len(names):
        raise InputError(
            "faithfulness: expected each profile once, found two of "
            f"{max(names, key=names.count)!r}: leave one out"
        )
    return dict(profiles)


def _named_profiles(result: ProfileSource) -> dict[str, TokenProfile]:
    """Profiles of one result. A sensitivity is read at layer 0, by its operator norm, an estimate
    by its Frobenius norm; of contributions the sizes are taken.
    """
    if isinstance(result, Attribution):
        sizes = result.of_tokens["contribution"].abs().to_numpy(dtype=float)
        linearisation = str(result.provenance.parameters["linearisation"])
        return {"attribution": TokenProfile("parts", linearisation, "logit", sizes)}
    if isinstance(result, Bounds):
        table: Frame = frame_of(result).assign(source=lambda rows: rows["variant"])
    else:
        table = frame_of(profile(result))
        kinds = table["method"].map(METHOD_KINDS)
        table = table.assign(source=table["linearisation"], kind=kinds)
    profile_by_name = {}
    for name, rows in table.sort_values("position", kind="stable").groupby("source", sort=False):
        kind, linearisation, norm = map(str, rows.iloc[0][["kind", "linearisation", "norm"]])
        values = rows["value"].to_numpy(dtype=float)
        profile_by_name[str(name)] = TokenProfile(kind, linearisation, norm, values)
    return profile_by_name


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
