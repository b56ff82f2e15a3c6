"""Probability of the right answer, log p(line | prompt), teacher-forced: the tokens of a line,
those that end it, and how much room an answer has.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools.ground import InputError, TransformerBridge
from ostools.measure.passes.batches import Rows
from ostools.measure.position import answer_text, line_ids
from ostools.measure.task_prompt import TaskPrompt
from ostools.models import Prompt
from ostools.models.files.checks import ids_of_setting
from ostools.models.tokens import tokenizer_of

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


def words_first(task_prompts: Sequence[TaskPrompt]) -> bool:
    """Whether words stand before the answer, which then has no probability behind the prompt."""
    return task_prompts[0].reasons or any(prompt.thinks for prompt in task_prompts)


def answer_room(model: TransformerBridge, task_prompts: Sequence[TaskPrompt]) -> int:
    """Tokens that an answer may have by default: the longest right line's and `spare` more."""
    longest = max(
        len(line_ids(model, task_prompt.prompt, answer_text(task_prompt)))
        for task_prompt in task_prompts
    )
    counts = max(task_prompt.counts for task_prompt in task_prompts)
    is_begun = task_prompts[0].prefill is not None
    return longest + spare(words_first(task_prompts), is_begun, counts)


def spare(reasons: bool, prefilled: bool = False, counts: int = 0) -> int:
    """Tokens that an answer may be longer than the right line: `SPARE`, `REASONING` more where the
    prompt asks for reasoning or the model thinks first, and `COUNT` for each of the parts that are
    counted first; `FEW_SHOT_SPARE` where the prompt has begun the answer line."""
    return FEW_SHOT_SPARE if prefilled else SPARE + REASONING * reasons + COUNT * counts


def line_rows(
    model: TransformerBridge, prompts: Sequence[Prompt], lines: Sequence[str], context: int
) -> list[tuple[int, ...]]:
    """The tokens of each line after its prompt. Raises `InputError` where both do not fit."""
    rows = [line_ids(model, *about) for about in zip(prompts, lines, strict=True)]
    needed = max(len(prompt.ids) + len(row) for prompt, row in zip(prompts, rows, strict=True))
    if needed > context:
        raise InputError(
            f"a prompt and its answer of {needed} tokens do not fit the model's context of "
            f"{context}: shorten the prompt"
        )
    return rows


def scores(
    rows: Rows,
    first: Float[Tensor, "batch 1 d_vocab"],
    lines: Sequence[Sequence[int]],
    ends: Sequence[int],
) -> list[float]:
    """Log probability of each row's line and an end behind what was read, whose last logits are
    `first`.
    """
    device = first.device
    if rows.cache is None:  # the length of a pass may turn its positions: a line has one of its own
        texts = zip(rows.unread.tolist(), lines, strict=True)
        of_line = [
            Rows(rows.model, [[*text, *line]], False).logits(keep=len(line) + 1)[0]
            for text, line in texts
        ]
    else:
        # What stands behind a shorter line is not looked at.
        width = max(map(len, lines))
        filled = [[*line, *[line[-1]] * (width - len(line))] for line in lines]
        logits = torch.cat([first, rows.ahead(torch.tensor(filled, device=device))], dim=1)
        of_line = [logits[row, : len(line) + 1] for row, line in enumerate(lines)]
    end_tensor = torch.tensor(ends, device=device)
    return [
        float(line_log_probability(row, torch.tensor(line, device=device), end_tensor))
        for row, line in zip(of_line, lines, strict=True)
    ]


def line_log_probability(
    logits: Float[Tensor, "_ d_vocab"],
    line: Int[Tensor, " token"],
    ends: Int[Tensor, " end"] | None,
) -> Float[Tensor, ""]:
    """Log probability of a line and an end behind it (None: of the line alone), with its graph: the
    last logits predict that end, those before them the line's tokens.
    """
    scores = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
    tokens = scores[:-1].gather(1, line[:, None]).double().sum()
    return tokens if ends is None else tokens + torch.logsumexp(scores[-1, ends].double(), dim=0)


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


def end_ids(model: TransformerBridge) -> frozenset[int]:
    """The tokens that end a text: the tokenizer's, and those that the model's generation settings
    name (ends of turn). A negative id names none."""
    sources = (getattr(model.original_model, "generation_config", None), model.tokenizer)
    ids = (
        ids_of_setting(getattr(source, "eos_token_id", None), "eos_token_id") for source in sources
    )
    return frozenset().union(*ids)
