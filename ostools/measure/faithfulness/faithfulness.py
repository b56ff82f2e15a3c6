"""Is sensitivity use? What a model does without a token, held against what profiles say of that
token.

A sensitivity is a derivative: how far y_n moves for a small change of a token. Whether the model
uses the token is asked by taking it out. Purpose: a number for "sensitivity is not use", of one
prompt. Cost: for each way of taking tokens out a pass a token, those of one length in batches. All
tokens before the last are taken out; the last one is y_n's own.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ostools import hooks, mitigations
from ostools.ground import (
    METHOD_KINDS,
    MINUS,
    InputError,
    Progress,
    TransformerBridge,
    chunk,
    distinct,
    short_repr,
    tell,
    with_progress,
)
from ostools.hooks.sites import is_closed
from ostools.measure.bounds.bounds import Bounds
from ostools.measure.jacobian.attribution import Attribution
from ostools.measure.jacobian.certificate import ROUNDING
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.batches import TOKENS
from ostools.measure.passes.contexts import (
    captured_pass,
    full_precision,
    last_position,
    require_no_edits,
)
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

Way = Literal["removed", "masked"]
REMOVED, MASKED = WAYS = get_args(Way)
"""How a token is taken out. Removed: the prompt is a token shorter, and later tokens stand one
place earlier. Masked: no later token attends to it, in any head; it stays where it is."""
EFFECTS = ("y_change", "log_prob_drop", "kl")
NO_LAST, BETWEEN = ("without the last", "without the first and the last")
"""The tokens that a rank correlation is of."""
ProfileSource: TypeAlias = Sensitivity | Bounds | Attribution
_PROFILE = ["source", "kind", "linearisation", "norm"]
"""What a profile's table says of it: its name; its kind (measured | estimated | certified | paper |
parts); its linearisation and norm."""
_LOGITS = 2**22  # numbers: 32 MiB in float64, several times over


@dataclass(frozen=True, eq=False)
class Faithfulness(Result):
    """Effects of leaving out each token of a prompt, and how profiles rank them.

    `frame`, one row a token before the last and way ("removed" | "masked"): position, token_id,
    token, origin, way, y_change (||y_n - y'||_2), log_prob_drop (log p - log p' of the answer, in
    nats: above 0 the token helped it), kl (KL(p || p') of the next token, in nats).

    `correlations`, one row a way, effect (y_change | log_prob_drop | kl), profile and choice of
    tokens (`kept`: without the last | without the first and the last): kind, linearisation and norm
    of the profile, tokens (how many reach y_n: their profile is not 0, or y_change is beyond
    rounding; the others would tie, and count as agreement), spearman (over these, with the size of
    the effect; NaN of fewer than three, and where either is flat), low, high (95%, as of
    independent tokens: neighbours are alike, so that it is too narrow).

    `provenance.parameters`: logit (the id, or two), token (its text), log_prob (of it,
    undisturbed), profiles (their names), ways.
    """

    tables: ClassVar = (TableHead("correlations"),)

    correlations: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.profile import faithfulness_chart

        return faithfulness_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import faithfulness_findings

        return faithfulness_findings(self)


def _sources(results: Iterable[object]) -> list[object]:
    """The results as a list. Raises `ValueError` for one that holds no profile."""
    sources = list(results)
    for result in sources:
        if not isinstance(result, ProfileSource):
            raise ValueError(
                "expected results of sensitivity, bounds or attribution, found "
                f"{short_repr(result)}"
            )
    return sources


@measurement(in_chunks=True)
def faithfulness(
    model: TransformerBridge,
    profiles: ProfileSource | Annotated[Sequence[ProfileSource], _sources],
    *,
    logit: str | int | Sequence[str | int] | None = None,
    ways: Way | Sequence[Way] | None = None,
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
            their log p; None: that of the attributions among the profiles, else the token that the
            model, in its own dtype, ranks first. How far its log p falls is measured in float32, or
            in float64 of a float64 model.
        ways: how a token is taken out: "removed" (later tokens move up one place) or "masked"
            (later tokens do not attend to it, in any head). None: both; "removed" alone where
            nothing inside a block is known.
        mitigation: the one under which the profiles were measured, and tokens are taken out.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for profiles of another model or of several prompts, an attribution of
    another answer, and while edits are active, because positions move.
    """
    sources = [profiles] if isinstance(profiles, ProfileSource) else [*profiles]
    token_values = _profiles(sources)
    usual = WAYS[:1] if is_closed(model) else WAYS
    way_names = distinct("ways", usual if ways is None else ways)
    acting = mitigations.optional(mitigation)
    require_no_edits("faithfulness", model, "positions move where tokens are taken out")
    measured = sources[0].provenance
    about = {k: v for k, v in measured.parameters.items() if k in (*PROMPT_PROVENANCE, "read_at")}
    about |= {} if acting is None else {"mitigation": mitigations.label(acting)}
    ids = measured.token_ids or ()
    provenance = Provenance.collect(model, ids, **about)
    require_same_run("faithfulness", measured, provenance, "the model")
    if len(ids) < 3:
        raise InputError(
            f"faithfulness: expected a prompt of at least three tokens, found {len(ids)}: there is "
            "no order of one"
        )
    target = _target(model, sources, logit, ids, acting)
    work = full_precision(model, "faithfulness")
    mitigated = MitigatedPrompts.of_rewritten("faithfulness", Prompt.from_ids(model, ids), acting)
    with mitigated.acting(work):
        prompt = torch.tensor(ids, device=next(work.parameters()).device)
        baseline = _pass(work, prompt[None])
        tables = [
            _effects(work, prompt, way, baseline, target, part).assign(way=way)
            for way, part in with_progress(way_names, progress)
        ]
    parameters = {
        **provenance.parameters,
        "logit": target[0] if len(target) == 1 else target,
        "token": MINUS.join(token_text(model.tokenizer, token) for token in target),
        "log_prob": float(_log_prob(baseline[1], target)),
        "ways": way_names,
        "profiles": list(dict.fromkeys(token_values["source"])),
    }
    tokens: Frame = frame_of(sources[0])[named_by(frame_of(sources[0]))]
    tokens = tokens.drop_duplicates("position").dropna(subset="position")
    frame: Frame = pd.concat(tables, ignore_index=True).merge(tokens, on="position")
    frame = frame[[*tokens.columns, "way", *EFFECTS]]
    where = replace(provenance, parameters=parameters)
    rounding = ROUNDING[next(work.parameters()).dtype] * float(baseline[0].norm())
    return Faithfulness(frame, where, _correlations(frame, token_values, rounding))


def _target(
    model: TransformerBridge,
    sources: Sequence[ProfileSource],
    logit: str | int | Sequence[str | int] | None,
    ids: Sequence[int],
    mitigation: Mitigation | None,
) -> tuple[int, ...]:
    """The answer's token, or two; where none is given, the one that the model predicts under the
    mitigation. Raises `InputError` for an attribution of another.
    """
    attributed = [
        logit_ids(model, result.provenance.parameters["logit"])
        for result in sources
        if isinstance(result, Attribution)
    ]
    if logit is None and attributed:
        return attributed[0]
    if logit is None:
        with mitigations.running(model, mitigation):
            return (predicted_token(model, torch.tensor(ids)),)
    target = logit_ids(model, logit)
    if attributed and attributed[0] != target:
        raise InputError(
            f"faithfulness: expected an attribution of the answer, logit={target}, found one of "
            f"{attributed[0]}: measure both with the same logit="
        )
    return target


Outcome: TypeAlias = tuple[Float[Tensor, "row d_model"], Float[Tensor, "row d_vocab"]]
"""y_n, and log p of every next token, in float64."""


def _effects(
    model: TransformerBridge,
    prompt: Int[Tensor, " pos"],
    way: str,
    baseline: Outcome,
    target: tuple[int, ...],
    progress: Progress | None,
) -> pd.DataFrame:
    """A row a token before the last: its position, and what taking it out that way does."""
    y, log_probs = baseline
    remaining = (torch.eye(len(prompt), device=prompt.device) == 0)[:-1]
    if way == REMOVED:
        prompts, masks = prompt.repeat(len(remaining), 1)[remaining].view(len(remaining), -1), None
    else:
        prompts, masks = prompt.repeat(len(remaining), 1), remaining
    rows = max(1, min(chunk(_LOGITS) // log_probs.shape[1], chunk(TOKENS) // prompts.shape[1]))
    changes = []
    for start in range(0, len(remaining), rows):
        part = slice(start, start + rows)
        y_after, after = _pass(model, prompts[part], None if masks is None else masks[part])
        # A next token that has no probability at all (a logit of -inf) adds nothing.
        terms = torch.where(log_probs.exp() > 0, log_probs.exp() * (log_probs - after), 0.0)
        drop = _log_prob(log_probs, target) - _log_prob(after, target)
        effects = (y_after - y).norm(dim=-1), drop, terms.sum(-1).clamp_min(0.0)
        changes.append(torch.stack(effects, dim=-1).cpu())
        tell(progress, min(start + rows, len(remaining)), len(remaining))
    table = pd.DataFrame(torch.cat(changes).numpy(), columns=[*EFFECTS])
    return table.rename_axis("position").reset_index()


def _log_prob(
    log_probs: Float[Tensor, "*row d_vocab"], target: tuple[int, ...]
) -> Float[Tensor, "*row"]:
    """log p of the answer, or the difference of the two (that of their logits)."""
    first, *second = (log_probs[..., token] for token in target)
    return first - second[0] if second else first


def _pass(
    model: TransformerBridge,
    prompts: Int[Tensor, "row pos"],
    visible: Bool[Tensor, "row pos"] | None = None,
) -> Outcome:
    """Outcome of each prompt; `visible`: the tokens that others attend to."""
    masked = nullcontext()
    if visible is not None:
        masked = hooks.mask_scores(
            model, lambda query, key: visible[:, key[0]][:, None, :] | (query == key)
        )
    with masked:
        record, last = captured_pass(
            model, prompts, "final_norm", reduce=last_position, logits=True
        )
    y, logits = record["final_norm"].double(), last[:, -1].double()
    if not bool(torch.isfinite(y).all()) or bool(torch.isnan(logits).any()):
        raise InputError(
            "faithfulness: the model's numbers on this prompt are not finite; its weights or its "
            "dtype are broken"
        )
    return y, torch.log_softmax(logits, dim=-1)


def _profiles(results: Sequence[ProfileSource]) -> Frame:
    """The profiles of all results: source (the linearisation of a sensitivity, the variant of a
    path sum, or "attribution"), kind, linearisation, norm, position, value (none negative).

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
    table: Frame = pd.concat(map(_token_values, results), ignore_index=True)
    twice = table.loc[table.duplicated(["source", "position"]), "source"]
    if len(twice):
        raise InputError(
            "faithfulness: expected each profile once, found two of "
            f"{twice.iloc[0]!r}: leave one out"
        )
    return table


def _token_values(result: ProfileSource) -> Frame:
    """The profiles of one result. A sensitivity is read at layer 0, by its operator norm, an
    estimate by its Frobenius norm; of contributions the sizes are taken.
    """
    table: Frame
    if isinstance(result, Attribution):
        about = {"source": "attribution", "kind": "parts", "norm": "logit"}
        about["linearisation"] = result.provenance.parameters["linearisation"]
        table = result.of_tokens.assign(**about, value=lambda rows: rows["contribution"].abs())
    elif isinstance(result, Bounds):
        table = frame_of(result).assign(source=lambda rows: rows["variant"])
    else:
        table = frame_of(profile(result))
        kinds = table["method"].map(METHOD_KINDS)
        table = table.assign(source=table["linearisation"], kind=kinds)
    return table[[*_PROFILE, "position", "value"]]


def _correlations(frame: Frame, token_values: Frame, rounding: float) -> pd.DataFrame:
    """`rounding`: how far it may move y_n."""
    rows = []
    ways = frame.groupby("way", sort=False)
    for (way, group), token_set, effect in product(ways, (NO_LAST, BETWEEN), EFFECTS):
        part = group if token_set == NO_LAST else group[group["position"] > 0]
        size, moves_y = np.abs(part[effect].to_numpy()), part["y_change"].to_numpy() > rounding
        for (name, *about), profiled in token_values.groupby(_PROFILE, sort=False):
            values = profiled.set_index("position")["value"].loc[part["position"]].to_numpy(float)
            in_reach = moves_y | (values != 0)
            tokens = int(in_reach.sum())
            correlation = rank_correlation(size[in_reach], values[in_reach])
            interval = spearman_interval(correlation, tokens)
            rows.append((way, effect, name, token_set, *about, tokens, correlation, *interval))
    names = ["way", "effect", "profile", "kept", *_PROFILE[1:], "tokens", "spearman", "low", "high"]
    return pd.DataFrame(rows, columns=names)
