"""Questions to a laboratory model: bits, and a letter that says what of them is wanted; token by
token.

    <bos> 0 1 1 1 F -> 0 <eos>      the first bit
    <bos> 1 1 1 0 L -> 0 <eos>      the last bit
    <bos> 1 0 1 1 C -> 3 <eos>      how many ones

One character is one token, so that the repeated item of Theorem 4.2 never merges. The letter stands
at the end: a window then hides the beginning of the sequence, and never what was asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ostools.ground.arguments import whole_number
from ostools.ground.errors import checked_name
from ostools.tasks.base import Task

LETTERS = {"first": "F", "last": "L", "count": "C"}
TASKS = tuple(LETTERS)
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
VOCABULARY = (PAD, BOS, EOS, *"0123456789", *LETTERS.values())
IDS = {token: index for index, token in enumerate(VOCABULARY)}


@dataclass(frozen=True)
class LabTask(Task):
    """One question of the laboratory. `hard`: the paper's sequences, ones alone, but for a 0 that
    is asked for; else bits drawn with equal probability. Raises `InputError` for an unknown
    question."""

    question: str
    hard: bool = False

    def __post_init__(self) -> None:
        checked_name("task", self.question, TASKS)

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"lab-{self.question}" + ("-hard" if self.hard else "")

    @property
    def random(self) -> bool:
        return not self.hard

    @property
    def numeric(self) -> bool:
        return True

    @property
    def trained_as(self) -> str:
        return f"lab-{self.question}"

    @property
    def lead(self) -> str:
        return ""

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        whole_number("length", length, 1)
        if not self.hard:
            draw = random.Random(f"{length} {seed}")
            return tuple(draw.choice("01") for _ in range(length))
        ones = ["1"] * length
        if self.question != "count":
            ones[0 if self.question == "first" else -1] = "0"
        return tuple(ones)

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        return "", "".join(pieces), LETTERS[self.question]

    def key(self, pieces: Sequence[str]) -> str:
        if self.question == "count":
            return str(sum(piece == "1" for piece in pieces))
        return pieces[0] if self.question == "first" else pieces[-1]

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        if self.question == "count":
            return tuple(index for index, item in enumerate(items) if item == "1")
        return (0,) if self.question == "first" else (len(items) - 1,)


def lab_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """The tokenizer of single characters. Other characters become `PAD`, which `ostools.encode`
    refuses as unknown.

    It lies in no model's directory: transformers 5.23 reads any tokenizer beside a Qwen 2 as Qwen
    2's own class, which leaves such characters out without a word.
    """
    tokenizer = Tokenizer(models.WordLevel(dict(IDS), unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([PAD, BOS, EOS])
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, IDS[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )
