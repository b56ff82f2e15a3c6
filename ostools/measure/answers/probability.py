"""Probability of the right answer: log p(line | prompt), teacher-forced.

A second measure beside what a model answers, and a cheaper one: one pass over prompt and line,
nothing generated. Below zero and one it still tells answers apart that are all wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import InputError, Progress, TransformerBridge, tell
from ostools.ground.memory import chunk
from ostools.measure.answers.answers import end_ids
from ostools.measure.passes.batches import TOKENS, Rows, batches, padding, shared_prefix
from ostools.measure.passes.contexts import true_arithmetic
from ostools.measure.position import answer_text, line_ids
from ostools.measure.prompts import as_prompt
from ostools.measure.task_prompt import TaskPrompt
from ostools.models import Prompt, context_length
from ostools.models.precision.scores import own_attention
from ostools.models.tokens import tokenizer_of

_LOGITS = 1 << 26  # numbers in the logits of one batch
SPARE = 48
"""Tokens that an answer may be longer than the right line.

Room for a preamble ("Sure! Here is the answer to your question, as you asked for it:" has some 20
tokens in the vocabularies of Gemma and Llama), for decoration around the answer, and for the end of
the line, without which it is not finished.
"""
FEW_SHOT_SPARE = 16
"""The same where the prompt has begun the answer line: what is left of it is short."""
REASONING = 256
"""Tokens that reasoning may have. The paper's groups of five take some 12 tokens for five items:
over 100 items need more.
"""
COUNT = 32
"""Tokens for the count of one part."""


def answer_room(model: TransformerBridge, task_prompts: Sequence[TaskPrompt], reasons: bool) -> int:
    """Tokens that an answer may have by default: the longest right line's and `spare` more."""
    longest = max(
        len(line_ids(model, task_prompt.prompt, answer_text(task_prompt)))
        for task_prompt in task_prompts
    )
    counts = max(task_prompt.counts for task_prompt in task_prompts)
    return longest + spare(reasons, task_prompts[0].prefill is not None, counts)


def spare(reasons: bool, prefilled: bool = False, counts: int = 0) -> int:
    """Tokens that an answer may be longer than the right line: `SPARE`, `REASONING` more where the
    prompt asks for reasoning or the model thinks first, and `COUNT` for each of the parts that are
    counted first; `FEW_SHOT_SPARE` where the prompt has begun the answer line."""
    return FEW_SHOT_SPARE if prefilled else SPARE + REASONING * reasons + COUNT * counts


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
        batch_size: as in `answers`.
        progress: called as progress(done, total) with the number of prompts scored.

    Raises `InputError` for a line without tokens of its own, prompt and line over the context, and
    logits that are not finite. Cost: one pass over every prompt and line, batched as `answers`
    batches.
    """
    line_id_rows, texts = [], []
    for prompt, line in zip(prompts, lines, strict=True):
        encoded_prompt = as_prompt(model, prompt)
        line_id_rows.append(line_ids(model, encoded_prompt, line))
        texts.append([*encoded_prompt.ids.tolist(), *line_id_rows[-1]])
    longest = max(map(len, texts))
    if longest > (context := context_length(model)):
        raise InputError(
            f"a prompt and its answer of {longest} tokens do not fit the model's context of "
            f"{context}: shorten the prompt"
        )
    # The most that may be kept of the logits, at the positions of a line and of its end.
    most_rows = chunk(_LOGITS) // ((max(map(len, line_id_rows)) + 1) * int(model.W_E.shape[0]))
    ends = torch.tensor(sorted(line_ends(model)), device=next(model.parameters()).device)
    score_by_index: dict[int, float] = {}
    most_tokens = min(chunk(TOKENS), max(most_rows, 1) * longest)
    for batch in batches(
        list(map(len, texts)), padding(model).allowed, most_tokens, most=batch_size
    ):
        keep = 1 + max(len(line_id_rows[index]) for index in batch)
        batch_ids = [texts[index] for index in batch]
        shared = shared_prefix(model, batch_ids, keep)
        with torch.no_grad(), true_arithmetic(model), own_attention(model):
            logits = Rows(model, batch_ids, cached=False, keep=keep, shared=shared).logits()
        for row, index in enumerate(batch):
            line = torch.tensor(line_id_rows[index], device=logits.device)
            score_by_index[index] = _log_probability(logits[row], line, ends)
        tell(progress, len(score_by_index), len(texts))
    return [score_by_index[index] for index in range(len(texts))]


def _log_probability(
    logits: Float[Tensor, "keep d_vocab"], line: Int[Tensor, " token"], ends: Int[Tensor, " end"]
) -> float:
    """Log probability of one row: the last logits but one predict the line's last token, the last
    ones the token after it.
    """
    last = logits[-1 - len(line) :]
    scores = torch.log_softmax(last if last.dtype == torch.float64 else last.float(), dim=-1)
    tokens = scores[:-1].gather(1, line[:, None]).double().sum()
    return float(tokens + torch.logsumexp(scores[-1, ends].double(), dim=0))


def line_ends(model: TransformerBridge) -> set[int]:
    """The tokens after which a line is over: ends of text, and those that begin with a line's end,
    blanks before it aside.
    """
    tokenizer = tokenizer_of(model)
    size = int(model.W_E.shape[0])
    tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
    # A token as the vocabulary spells it: byte-level BPE writes a line's end as "Ċ" and blanks as
    # "Ġ", SentencePiece as "▁".
    ids = {index for index in end_ids(model) if index < size} | {
        index
        for index, token in enumerate(tokens)
        if str(token or "").lstrip(" \u2581\u0120").startswith(("\n", "\u010a", "<0x0A>"))
    }
    if not ids:
        raise InputError(
            "expected a tokenizer with a token that ends a text or a line, found none: no answer "
            "could end"
        )
    return ids
