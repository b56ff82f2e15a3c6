"""Effects of taking a token out of a prompt: removed, replaced by another of its kind, or masked in
attention.

Cost: one pass a case, those of one length in batches. Memory: of each case three numbers are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, Progress, TransformerBridge, tell
from ostools.ground.memory import chunk
from ostools.measure.passes.batches import TOKENS, batches
from ostools.measure.passes.contexts import captured_pass, last_position
from ostools.models.tokenizer_calls import control_ids

Way = Literal["removed", "replaced", "masked"]
REMOVED, REPLACED, MASKED = WAYS = get_args(Way)
"""How a token is taken out. Removed: the prompt is a token shorter, and later tokens stand one
place earlier. Replaced: another token of its kind stands in its place. Masked: no later token
attends to it, in any head; it stays where it is."""
EFFECTS = ("y_change", "log_prob_drop", "kl")
_LOGITS = 2**22  # numbers: 32 MiB in float64, several times over


@dataclass(frozen=True)
class DeletionCase:
    """A prompt as the model sees it, and the place that no later token attends to."""

    ids: tuple[int, ...]
    hidden: int | None = None


@dataclass(frozen=True)
class WholePrompt:
    """The undisturbed prompt: y_n, and log p of every next token, in float64; `answer`: the one
    that is meant, or two whose difference of log p is (that of their logits)."""

    y: Float[Tensor, " d_model"]
    log_probs: Float[Tensor, " d_vocab"]
    answer: tuple[int, ...]

    @classmethod
    def of(
        cls, model: TransformerBridge, ids: Sequence[int], logit: tuple[int, ...]
    ) -> WholePrompt:
        y, log_probs = _pass(model, [DeletionCase(tuple(ids))])
        return cls(y[0], log_probs[0], logit)

    def log_prob(self, log_probs: Float[Tensor, "*case d_vocab"]) -> Float[Tensor, "*case"]:
        """log p of the answer, or the difference of the two."""
        first, *second = (log_probs[..., token] for token in self.answer)
        return first - second[0] if second else first

    def effects(
        self, y: Float[Tensor, "case d_model"], log_probs: Float[Tensor, "case d_vocab"]
    ) -> Float[Tensor, "case effect"]:
        """||y_n - y'||_2; log p - log p' of the answer; KL(p || p') = sum_t p_t (log p_t - log
        p'_t) in nats.
        """
        change = (y - self.y).norm(dim=-1)
        drop = self.log_prob(self.log_probs) - self.log_prob(log_probs)
        # A next token that has no probability at all (a logit of -inf) adds nothing.
        divergence_terms = torch.where(
            self.log_probs.exp() > 0, self.log_probs.exp() * (self.log_probs - log_probs), 0.0
        )
        return torch.stack([change, drop, divergence_terms.sum(-1).clamp_min(0.0)], dim=-1)


@dataclass(frozen=True)
class Kinds:
    """Which tokens are of one kind: digits, letters, letters beyond ASCII or anything else, after a
    blank or not. Control tokens are of none. Of a model without a tokenizer all ids are of one
    kind."""

    of_token: dict[int, str]
    members: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: TransformerBridge) -> Kinds:
        tokenizer, count = model.tokenizer, int(model.W_E.shape[0])
        if tokenizer is None:
            kind_by_id = dict.fromkeys(range(count), "id")
        else:
            control, texts = control_ids(tokenizer), tokenizer.convert_ids_to_tokens(range(count))
            text_by_id = (
                (index, text) for index, text in enumerate(texts) if text and index not in control
            )
            kind_by_id = {index: _kind(text) for index, text in text_by_id}
        members: dict[str, list[int]] = {}
        for index, kind in kind_by_id.items():
            members.setdefault(kind, []).append(index)
        return cls(kind_by_id, members)

    def replacements(self, token: int, draws: int, seed: Sequence[int]) -> list[int]:
        """Draw `draws` other tokens of the token's kind from the seed, each once; all where there
        are fewer.
        """
        if token not in self.of_token:
            return []
        candidates = [
            candidate for candidate in self.members[self.of_token[token]] if candidate != token
        ]
        order = np.random.default_rng(list(seed)).permutation(len(candidates))[:draws]
        return [candidates[index] for index in order]


def _kind(text: str) -> str:
    """Kind of a token by the vocabulary's own spelling, in which a blank is written as a letter or
    a mark, and bytes that are no text by themselves as letters beyond ASCII."""
    bare = text.lstrip("▁Ġ ")
    letters = "letters" if bare.isascii() else "letters beyond ASCII"
    what = "digits" if bare.isdecimal() else letters if bare.isalpha() else "other"
    return what if bare == text else f"blank and {what}"


def without(ids: Sequence[int], place: int, way: str, stand_in: int) -> DeletionCase:
    """The prompt with the token at one place taken out; `stand_in`: what replaces it."""
    if way == REMOVED:
        return DeletionCase((*ids[:place], *ids[place + 1 :]))
    if way == REPLACED:
        return DeletionCase((*ids[:place], stand_in, *ids[place + 1 :]))
    return DeletionCase(tuple(ids), place)


def effects(
    model: TransformerBridge,
    whole_prompt: WholePrompt,
    cases: Sequence[DeletionCase],
    progress: Progress | None = None,
) -> Float[np.ndarray, "case effect"]:
    """The columns of `EFFECTS` for every case, in order. Raises `InputError` for numbers that are
    not finite.
    """
    effect_rows, cases_done = np.empty((len(cases), len(EFFECTS))), 0
    most = max(1, chunk(_LOGITS) // len(whole_prompt.log_probs))
    for batch in batches([len(case.ids) for case in cases], False, chunk(TOKENS), most=most):
        changes = whole_prompt.effects(*_pass(model, [cases[index] for index in batch]))
        effect_rows[batch] = changes.cpu().numpy()
        cases_done += len(batch)
        tell(progress, cases_done, len(cases))
    return effect_rows


def _pass(
    model: TransformerBridge, cases: Sequence[DeletionCase]
) -> tuple[Float[Tensor, "case d_model"], Float[Tensor, "case d_vocab"]]:
    """y of the last token and the log probabilities of the next one, in float64, of prompts of one
    length.
    """
    ids = torch.tensor([case.ids for case in cases], device=next(model.parameters()).device)
    hidden = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    for row, case in enumerate(cases):
        if case.hidden is not None:
            hidden[row, case.hidden] = True
    masked = nullcontext()
    if bool(hidden.any()):  # a token sees itself and what is not hidden
        masked = hooks.mask_scores(
            model, lambda query, key: ~hidden[:, key[0]][:, None, :] | (query == key)
        )
    with masked:
        record, last = captured_pass(model, ids, "final_norm", reduce=last_position, logits=True)
    logits = last[:, -1].double()
    y = record["final_norm"].double()
    if not bool(torch.isfinite(y).all()) or bool(torch.isnan(logits).any()):
        raise InputError(
            "faithfulness: the model's numbers on this prompt are not finite; its weights or its "
            "dtype are broken"
        )
    return y, torch.log_softmax(logits, dim=-1)
