"""The beginning of a prompt in the place of the whole: what a causal model does there knows of no later token."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError
from ostools.models import Prompt

_ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-10}
_OF_A_QUERY = ("exact-arithmetic", "ablate_heads", "ablate_layers", "scale_scores")
"""Edits that do the same to a query whatever comes after it."""


def begun(model: TransformerBridge, prompt: Prompt, at: int) -> Prompt:
    """The tokens up to position `at`, from the end where negative; the last of them has the logits that it has in the whole.

    Raises `InputError` for a position that the prompt lacks, where the logits differ, and under an edit that may read later
    tokens: equal logits do not prove equal derivatives there.
    """
    pos = len(prompt.ids)
    if type(at) is not int or not -pos <= at < pos:
        raise InputError(f"at: expected a position from 0 to {pos - 1}, or from the end down to {-pos}, found {at!r}")
    end = at % pos + 1
    if end == pos:
        return prompt
    others = [edit for edit in hooks.active_edits(model) if edit.kind not in _OF_A_QUERY]
    if others:
        raise InputError(
            f"at: expected no edit that may read later tokens, found {others[0].kind!r} at {others[0].where}: give the "
            "beginning of the prompt itself, or leave the edit's block"
        )
    ids = prompt.ids[None].to(next(model.parameters()).device)
    with torch.no_grad():
        whole, part = model(ids)[0, end - 1], model(ids[:, :end], logits_to_keep=1)[0, -1]
    error = float((whole - part).abs().max() / whole.abs().max())
    if not error <= _ROUNDING[whole.dtype]:
        raise InputError(
            f"at: expected the logits at position {end - 1} to be those of the first {end} tokens alone, found {error:.2g} of "
            "their size between them: the model or an edit reads later tokens, so that a beginning says nothing of the whole"
        )
    origins = None if prompt.origins is None else prompt.origins[:end]
    return replace(prompt, ids=prompt.ids[:end], tokens=prompt.tokens[:end], origins=origins)
