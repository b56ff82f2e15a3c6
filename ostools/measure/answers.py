"""What a model answers, greedily: at every step the most likely token, until its end of text, a stop, or a limit.

Prompts of the same number of tokens go through together, others apart: nothing is padded, so that no prompt's answer can depend
on its neighbours' lengths. Cost: one pass over the prompts and one token a step through a key/value cache. Where a cache would
not give what the whole text gives (a rotary embedding that depends on its length, an edit that nobody knows), every step reads
the whole text again: max_new_tokens times the cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers.cache_utils import DynamicCache

import hooks
from ostools.errors import InputError
from ostools.measure.forward import KNOWN_EDITS
from ostools.measure.precision import true_arithmetic
from ostools.measure.prefixes import route
from ostools.measure.prompts import Progress, as_prompt
from ostools.models import Prompt, context_length

# These act on absolute positions or on each position alone: a step of one query does what the whole text would.
_STEPWISE_EDITS = KNOWN_EDITS | {"ablate_heads", "ablate_layers"}
_BATCH_TOKENS = 4096
_LONGEST_NUMBER = 18  # digits: what an int64 holds


@dataclass(frozen=True)
class Answer:
    """What was generated behind one prompt.

    `ids`: every token generated, the end of text included. `text`: what they say behind the prompt, up to the stop or the end
    of text. `ended`: by the model's own end of text ("eos"), by a stop ("stop"), or cut at max_new_tokens ("length").
    """

    ids: tuple[int, ...]
    text: str
    ended: Literal["eos", "stop", "length"]


def answers(
    model: TransformerBridge,
    prompts: Sequence[str | Prompt],
    *,
    max_new_tokens: int,
    stop: str | None = "\n",
    progress: Progress | None = None,
) -> list[Answer]:
    """Each prompt's greedy answer, in the prompts' order, in the model's dtype and under the edits that are active.

    Args:
        max_new_tokens: tokens after which an answer is cut.
        stop: text that ends an answer where it stands behind something that is not blank; None: only the end of text does.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for no prompts, for a prompt that leaves no room for max_new_tokens in the context, and for logits that
    are not finite. Of tokens that are exactly equally likely (common in 16 bits) `torch.argmax` chooses.
    """
    chosen = [as_prompt(model, prompt) for prompt in prompts]
    _check(model, chosen, max_new_tokens, stop)
    found: dict[int, Answer] = {}
    for batch in _batches(chosen):
        ids = torch.stack([chosen[index].ids for index in batch])
        with torch.no_grad(), true_arithmetic(model):
            found |= zip(batch, _answered(model, ids, max_new_tokens, stop), strict=True)
        if progress is not None:
            progress(len(found), len(chosen))
    return [found[index] for index in range(len(chosen))]


def _check(model: TransformerBridge, prompts: Sequence[Prompt], max_new_tokens: int, stop: str | None) -> None:
    if not prompts:
        raise InputError("answers: expected at least one prompt, found none")
    if model.tokenizer is None:
        raise InputError("answers: expected a model with a tokenizer, found none: set `model.tokenizer`")
    if max_new_tokens < 1:
        raise InputError(f"answers: expected max_new_tokens of at least 1, found {max_new_tokens}")
    if stop == "":
        raise InputError("answers: expected a stop of at least one character, or None, found empty text")
    context, longest = context_length(model), max(len(prompt.ids) for prompt in prompts)
    if longest + max_new_tokens > context:
        raise InputError(
            f"answers: a prompt of {longest} tokens and max_new_tokens={max_new_tokens} do not fit the model's context of "
            f"{context}: shorten one of them"
        )


def _batches(prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """The indices of prompts that have the same length, not too many at once."""
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt.ids), []).append(index)
    for length, indices in by_length.items():
        step = max(1, _BATCH_TOKENS // length)
        yield from (indices[start : start + step] for start in range(0, len(indices), step))


def _answered(
    model: TransformerBridge, prompts: Int[Tensor, "batch pos"], max_new_tokens: int, stop: str | None
) -> list[Answer]:
    """Prompts of one length, until the last of them has ended."""
    reading = _Reading(model, stop)
    written: list[list[int]] = [[] for _ in prompts]
    done: dict[int, Answer] = {}
    for chosen in _greedy(model, prompts, max_new_tokens):
        for row, token in enumerate(chosen):
            if row not in done:
                written[row].append(token)
                answer = reading.of(prompts[row].tolist(), written[row])
                if answer.ended != "length" or len(answer.ids) == max_new_tokens:
                    done[row] = answer
        if len(done) == len(prompts):
            break
    return [done[row] for row in range(len(prompts))]


def _greedy(model: TransformerBridge, prompts: Int[Tensor, "batch pos"], steps: int) -> Iterator[list[int]]:
    """The most likely next token of every prompt, step by step."""
    cached = _cache_is_exact(model)
    # Without the configuration: sliding layers would drop old keys, and edits count positions from the first key.
    options: dict[str, Any] = {"past_key_values": DynamicCache(), "use_cache": True} if cached else {"use_cache": False}
    unread = prompts.to(next(model.parameters()).device)
    for _ in range(steps):
        logits = model(unread, logits_to_keep=1, **options)[:, -1]
        if not bool(torch.isfinite(logits).all()):
            dtype = str(logits.dtype).removeprefix("torch.")
            raise InputError(
                f"answers: the logits of a prompt of {prompts.shape[1]} tokens are not finite in {dtype}: use another dtype, "
                "or check the model's weights"
            )
        tokens = logits.argmax(-1)
        yield tokens.tolist()
        unread = tokens[:, None] if cached else torch.cat([unread, tokens[:, None]], dim=1)


def _cache_is_exact(model: TransformerBridge) -> bool:
    """Whether a step through the cache is what the whole text would give."""
    edits = {edit.kind for edit in hooks.active_edits(model)}
    return route(model, ()).name != "loop" and edits <= _STEPWISE_EDITS


class _Reading:
    """Generated tokens as an answer: their text behind the prompt, and how it ended."""

    def __init__(self, model: TransformerBridge, stop: str | None) -> None:
        self.tokenizer: Any = model.tokenizer
        self.stop = stop
        self.ends = _end_ids(model)

    def of(self, prompt: list[int], written: list[int]) -> Answer:
        if written[-1] in self.ends:
            return Answer(tuple(written), self._text(prompt, written[:-1]), "eos")
        text = self._text(prompt, written)
        blank = len(text) - len(text.lstrip())
        if self.stop is not None and (at := text.find(self.stop, blank)) >= 0:
            return Answer(tuple(written), text[:at], "stop")
        return Answer(tuple(written), text, "length")

    def _text(self, prompt: list[int], written: list[int]) -> str:
        """Decoded behind the prompt, because decoders strip the space at the start of a text."""
        options = {"clean_up_tokenization_spaces": False}
        before, both = (self.tokenizer.decode(ids, **options) for ids in (prompt, prompt + written))
        return both[len(before) :] if both.startswith(before) else self.tokenizer.decode(written, **options)


def _end_ids(model: TransformerBridge) -> frozenset[int]:
    """The tokens that end a text: the tokenizer's, and those that the model's generation settings name (ends of turn)."""
    settings = getattr(model.original_model, "generation_config", None)
    named = getattr(settings, "eos_token_id", None)
    own = named if isinstance(named, list) else [named]
    return frozenset({index for index in (*own, getattr(model.tokenizer, "eos_token_id", None)) if index is not None})


@dataclass(frozen=True)
class Score:
    """An answer against its key. `number` and `absolute_error` are None where its final line holds no one number."""

    correct: bool
    number: int | None
    absolute_error: int | None


def score(answer: Answer, wanted: str, key: str) -> Score:
    """`correct`: the answer came to its end, and its final line is `wanted`, blanks around it aside.

    Args:
        wanted: the right final line: `AppendixTask.answer_line(key)`, or the key alone behind a prompt that opens the line.
        key: the right answer, from the generator.

    number: the one whole number in the final line, right or wrong: "12.", "**12**" and "12 ones" against the key 12 are the
    right number (absolute_error 0) in another form (not `correct`). A line with several, with one of another kind (-3, 1.5,
    1,000), with one that was cut, or too long to be a count (over 18 digits) is unparsable, and no error is made up for it.
    """
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    final = lines[-1] if lines else ""
    cut = answer.ended == "length" and answer.text[-1:].isdigit()
    number = None if cut else _number(final)
    error = None if number is None or _number(key) is None else abs(number - int(key))
    return Score(answer.ended != "length" and final == wanted.strip(), number, error)


def _number(line: str) -> int | None:
    words = re.findall(r"[^\s:=]*\d[^\s:=]*", line)
    bare = words[0].strip(".,;!?'\"()*") if len(words) == 1 else ""
    return int(bare) if bare.isascii() and bare.isdigit() and len(bare) <= _LONGEST_NUMBER else None
