"""Generate answers: at every step the most likely token, until an end of text, a stop, or a limit.

Prompts of different lengths go through together where left padding is proven harmless, others with
those of their own length (`batches`): no prompt's answer depends on its neighbours. Cost: one pass
over the prompts and one token a step through a key/value cache. Where a cache would not give what
the whole text gives (a rotary embedding that depends on its length, an edit that nobody knows),
every step reads the whole text again: max_new_tokens times the cost.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, Progress, TransformerBridge, chunk, tell
from ostools.measure.answers.probability import end_ids, line_ends, line_rows, scores
from ostools.measure.passes.batches import (
    TOKENS,
    Rows,
    batches,
    batching_of,
    padding,
    shared_prefix,
)
from ostools.measure.passes.contexts import PATTERN_EDITS, true_arithmetic
from ostools.measure.prompts import as_prompt
from ostools.models import Prompt, context_length
from ostools.models.describe import attention_named
from ostools.models.precision.scores import own_attention, runs_own_attention
from ostools.models.tokenizer_calls import decoded
from ostools.models.tokens import token_text

# These act on absolute positions or on each position alone: a step of one query does what the whole
# text would. A pattern that is replaced or frozen is that of a whole text: of a step's one query a
# function would make another.
_STEPWISE_EDITS = PATTERN_EDITS - {"replace_pattern", "freeze"} | {"ablate_heads", "ablate_layers"}
CYCLE, CYCLE_AN_ITEM = 48, 4
"""Tokens of an exact cycle after which an answer is stopped, and so many more for every item of its
question: a right answer may write a term for each of them, four tokens long in "(1 + 1 + 1)"."""
_PERIODS = range(1, 33)  # tokens of a cycle
_LOGITS = 1 << 26  # numbers in the logits of one batch of scored lines
_ANCHOR = 8  # of a prompt's last tokens, after which an answer is decoded

Stop: TypeAlias = Callable[[str], bool]
"""Whether an answer is at its end with this text; what it says of a text it says of every longer
one.
"""
Ended: TypeAlias = Literal["eos", "stop", "length", "repeats"]


@dataclass(frozen=True)
class Answer:
    """Answer generated after one prompt.

    `ids`: every token generated, the end of text included. `text`: what they say after the prompt,
    all of it but the end of text. `ended`: by the model's own end of text ("eos"), by a stop
    ("stop"), or cut at max_new_tokens ("length"); "repeats": stopped in an exact cycle of tokens,
    which proves nothing of what the model would have written later. `log_probability`: of the line
    that was scored beside it; NaN where none was.
    """

    ids: tuple[int, ...]
    text: str
    ended: Ended
    log_probability: float = math.nan


def answers(
    model: TransformerBridge,
    prompts: Sequence[str | Prompt],
    *,
    max_new_tokens: int,
    stops: Sequence[Stop] | None = None,
    cycles: Sequence[int] | None = None,
    lines: Sequence[str] | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Answer]:
    """Generate an answer to every prompt, in the prompts' order, in the model's dtype and under the
    edits that are active at every step.

    Args:
        max_new_tokens: tokens after which an answer is cut.
        stops: one a prompt, asked of the text after every token (`reading.Reader.closed`,
            `line_written`), which needs a tokenizer; None: only the end of text ends an answer.
        cycles: one a prompt, the tokens that may repeat those one period (up to 32 tokens) before
            them until the answer is stopped; None: no number of them stops it.
        lines: one a prompt, whose log probability is measured too (`answer_log_probability`).
        batch_size: the most prompts that go through together; None: as many as fit. With 1 each is
            read alone, as greedy `generate` of transformers reads it, without its penalties.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for a prompt that leaves no room for max_new_tokens or its line in the
    context, for a line without tokens of its own, and for logits that are not finite. A batch of
    another size may round the last digit of a logit otherwise: in 16 bits, where a step is large,
    two tokens closer than that can change places: two right runs of one model in bfloat16 differed
    at about one of thirteen near ties.
    """
    encoded = [as_prompt(model, prompt) for prompt in prompts]
    ids = [prompt.ids.tolist() for prompt in encoded]
    longest, context = max(map(len, ids)), context_length(model)
    if longest + max_new_tokens > context:
        raise InputError(
            f"answers: a prompt of {longest} tokens and max_new_tokens={max_new_tokens} do not fit "
            f"the model's context of {context}: shorten one of them"
        )
    scored = [] if lines is None else line_rows(model, encoded, lines, context)
    longest_line = max(map(len, scored), default=0)
    readers = _readers(model, ids, stops, cycles)
    answer_by_index: dict[int, Answer] = {}

    def ended(count: int) -> None:
        tell(progress, len(answer_by_index) + count, len(ids))

    ends = sorted(line_ends(model)) if scored else []
    # The most that may be kept of the logits, at the positions of a line and of its end.
    at_once = chunk(_LOGITS) // ((longest_line + 1) * int(model.W_E.shape[0]))
    most_tokens = min(chunk(TOKENS), max(1, at_once) * longest)
    for batch in batches(
        list(map(len, ids)), padding(model).allowed, most_tokens, max_new_tokens, batch_size
    ):
        texts = [ids[index] for index in batch]
        shared = shared_prefix(model, texts, steps=max(max_new_tokens, longest_line))
        with torch.no_grad(), true_arithmetic(model), own_attention(model):
            rows = Rows(model, texts, cache_is_exact(model), shared=shared)
            first = rows.logits()
            line_scores = [math.nan] * len(batch)
            if scored:
                line_scores = scores(rows, first, [scored[index] for index in batch], ends)
            batch_answers = _generate(rows, first, batch, readers, max_new_tokens, ended)
        answer_by_index |= {
            index: replace(batch_answers[index], log_probability=score)
            for index, score in zip(batch, line_scores, strict=True)
        }
    return [answer_by_index[index] for index in range(len(ids))]


def answer_log_probability(
    model: TransformerBridge,
    prompts: Sequence[str | Prompt],
    lines: Sequence[str],
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Log probability that the model writes each line after its prompt, and ends it there.

        log p = sum_t log p(line_t | prompt, line_<t) + log p(an end | prompt, line)

    An end is an end of text or a token that begins with the end of a line: without it "1" would
    have the probability of "12" too. It is the probability of the line in the tokens of `line_ids`,
    at temperature 1; other ways to write the same are not in it. The softmax is computed in
    float32, or in float64 for a float64 model.

    Args:
        lines: what is scored, one a prompt, with the line end before it that the model is to write
            (`answer_text`).
        batch_size, progress: as in `answers`.

    Raises `InputError` for a line without tokens of its own, prompt and line over the context, and
    logits that are not finite. Cost: a pass over every prompt and one over every line, batched as
    `answers` batches.
    """
    scored_answers = answers(
        model, prompts, max_new_tokens=1, lines=lines, batch_size=batch_size, progress=progress
    )
    return [answer.log_probability for answer in scored_answers]


def _readers(
    model: TransformerBridge,
    ids: Sequence[list[int]],
    stops: Sequence[Stop] | None,
    cycles: Sequence[int] | None,
) -> list[Callable[[list[int]], Answer]]:
    """Of each prompt the function that makes an answer of its new tokens."""
    none, answer_so_far = [None] * len(ids), partial(_answer, model.tokenizer, end_ids(model))
    stop_rules = zip(ids, stops or none, cycles or none, strict=True)
    return [partial(answer_so_far, *about) for about in stop_rules]


def line_written(text: str) -> bool:
    """Whether a line that is not blank is complete: the stop where the first line is the answer."""
    return any(line.strip() for line in re.split(r"[\r\n]", text)[:-1])


def _generate(
    rows: Rows,
    logits: Float[Tensor, "batch 1 d_vocab"],
    indices: Sequence[int],
    readers: Sequence[Callable[[list[int]], Answer]],
    max_new_tokens: int,
    ended: Callable[[int], None],
) -> dict[int, Answer]:
    """The answers of prompts that were read, with these `logits` at their ends, by their `indices`.
    `ended`: called with how many of the answers are at their end, when more of them are.
    """
    going, new_ids = list(indices), {index: [] for index in indices}
    finished: dict[int, Answer] = {}
    while True:
        tokens, ended_before = logits[:, -1].argmax(-1), len(finished)
        for index, token in zip(going, tokens.tolist(), strict=True):
            if index not in finished:
                new_ids[index].append(token)
                answer = readers[index](new_ids[index])
                if answer.ended != "length" or len(answer.ids) == max_new_tokens:
                    finished[index] = answer
        if len(finished) > ended_before:
            ended(len(finished))
        if len(finished) == len(indices):
            return finished
        rows.extend(tokens)
        # A few answers can be much longer than the rest: those that ended leave, not one by one, as
        # that copies the cache.
        unfinished_rows = [row for row, index in enumerate(going) if index not in finished]
        if 2 * len(unfinished_rows) <= len(going):
            rows.keep(unfinished_rows)
            going = [going[row] for row in unfinished_rows]
        logits = rows.logits()


def cache_is_exact(model: TransformerBridge) -> bool:
    edits = {edit.kind for edit in hooks.active_edits(model)}
    return batching_of(model).name != "loop" and edits <= _STEPWISE_EDITS


def how_read(model: TransformerBridge) -> dict[str, object]:
    """Provenance entries: how prompts are batched and read under the edits that are active, by
    which attention, and the tokens that end an answer.
    """
    how = padding(model)
    return {
        "batches": "padded" if how.allowed else "equal lengths only",
        "batches_reason": how.reason,
        "batch_tokens": chunk(TOKENS),
        "cache": cache_is_exact(model),
        "attention": "sdpa" if runs_own_attention(model) else attention_named(model),
        "ends": sorted(end_ids(model)),
    }


def _answer(
    tokenizer: Any,
    ends: frozenset[int],
    prompt: list[int],
    stop: Stop | None,
    cycle: int | None,
    new_ids: list[int],
) -> Answer:
    """The answer that these ids are so far; "length" where nothing ends it."""
    if new_ids[-1] in ends:
        return Answer(tuple(new_ids), text_behind(tokenizer, prompt, new_ids[:-1]), "eos")
    text = text_behind(tokenizer, prompt, new_ids)
    ended: Ended = "length"
    if stop is not None and stop(text):
        ended = "stop"
    elif cycle is not None and _repeats(new_ids, cycle):
        ended = "repeats"
    return Answer(tuple(new_ids), text, ended)


def _repeats(ids: list[int], cycle: int) -> bool:
    """Whether the last `cycle` tokens are each the one that stands a period before it."""
    return any(
        len(ids) >= cycle + period and ids[-cycle:] == ids[-cycle - period : -period]
        for period in _PERIODS
    )


def text_behind(tokenizer: Any, prompt: list[int], new_ids: list[int]) -> str:
    """Decoded after the prompt's end, because decoders strip the space at the start of a text."""
    if tokenizer is None:
        return "".join(token_text(None, index) for index in new_ids)
    anchor = prompt[-_ANCHOR:]
    before, joined_text = (decoded(tokenizer, ids) for ids in (anchor, anchor + new_ids))
    if joined_text.startswith(before):
        return joined_text[len(before) :]
    return decoded(tokenizer, new_ids)
