"""Helpers of measurements on prompts: the encoded prompt and its columns, checked layers, tokens that correspond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError, short_repr
from ostools.models import Prompt, encode
from ostools.models.chat import TEXT
from ostools.models.tokens import fitted
from ostools.results import Frame

BY_TOKEN = ("position", "token", "source", "norm", "kind")


def by_token(rows: Frame, source: object, norm: object, kind: object) -> Frame:
    """The one table that every result with a value a token has: position, token, source (which of the result's profiles), norm
    (the value), kind (measured | estimated | certified | paper | predicted)."""
    return rows.assign(source=source, norm=norm, kind=kind)[[*BY_TOKEN]].reset_index(drop=True)


def as_prompt(model: TransformerBridge, prompt: str | Prompt) -> Prompt:
    """The prompt in tokens; text is encoded with the model's own tokenizer, special tokens added once. Raises `InputError` for
    a `Prompt` of another model."""
    if not isinstance(prompt, str | Prompt):
        raise InputError(
            f"expected a text or a Prompt, found {type(prompt).__name__}; for token ids use ost.Prompt.from_ids(model, ids)"
        )
    return encode(model, prompt) if isinstance(prompt, str) else fitted(model, prompt)


def as_prompts(model: TransformerBridge, prompts: Sequence[str | Prompt]) -> list[Prompt]:
    """Every prompt in tokens. Raises `InputError` for what is no list of prompts, for an empty one, and for each that
    `as_prompt` refuses, by its number among several."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise InputError(
            f"expected a text, a Prompt or a list of them, found {type(prompts).__name__}; for token ids use "
            "ost.Prompt.from_ids(model, ids)"
        )
    if not prompts:
        raise InputError("expected at least one prompt, found an empty list")
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            encoded.append(as_prompt(model, prompt))
        except InputError as error:
            if len(prompts) == 1:
                raise
            raise InputError(f"prompt {number} of {len(prompts)}: {error}") from error
    return encoded


def checked_layers(model: TransformerBridge, layers: Literal["all"] | Iterable[int]) -> tuple[int, ...]:
    """The residual streams v^(l) in order: 0 is the embedding, L = n_layers what the last block leaves. Others are refused."""
    last = int(model.cfg.n_layers)
    if isinstance(layers, str) and layers == "all":
        return tuple(range(last + 1))
    layer_list = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    wrong = [layer for layer in layer_list if type(layer) is not int or not 0 <= layer <= last]
    if wrong or not layer_list:
        raise InputError(
            f"layers: expected 'all' or numbers out of 0..{last}, found {short_repr(wrong) if wrong else 'none'}"
        )
    return tuple(sorted({layer for layer in layer_list if isinstance(layer, int)}))


def token_columns(prompt: Prompt) -> pd.DataFrame:
    """One row a token: position (from 0), token_id, token (as text, for display), origin (one of `models.ORIGINS`: the user's
    text, the chat template's own, ...; missing where that is not known)."""
    ids = prompt.ids.tolist()
    columns = {"position": range(len(ids)), "token_id": ids, "token": list(prompt.tokens)}
    origins = pd.array(prompt.origins or [None] * len(ids), dtype="str")
    return pd.DataFrame({**columns, "origin": origins})


def partners(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The positions (of the first, of the second) of tokens that correspond: those with which both begin, and both end.

    A token that would have two partners, one from either end, has none: which of them it is, is not known.
    """
    start, end = _agreeing(first, second), _agreeing(first[::-1], second[::-1])
    forward = {(place, place) for place in range(start)}
    backward = {(len(first) - 1 - place, len(second) - 1 - place) for place in range(end)}
    pairs = forward | backward
    times = Counter(place for place, _ in pairs), Counter(place for _, place in pairs)
    return sorted((a, b) for a, b in pairs if times[0][a] == 1 == times[1][b])


def _agreeing(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Number of leading entries in which two sequences agree."""
    return next(
        (place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def named_by(frame: Frame) -> list[str]:
    """The columns of a table that say which token a row is of."""
    return [name for name in ("position", "token_id", "token", "origin") if name in frame]


def of_text(frame: Frame) -> Frame:
    """The rows of the user's own text; every row where it is not known whose the tokens are, and where none is the text's."""
    has_origin = "origin" in frame and bool(frame["origin"].notna().all())
    rows = frame[frame["origin"] == TEXT] if has_origin else frame
    return rows if len(rows) else frame
