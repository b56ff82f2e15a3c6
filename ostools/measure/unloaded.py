"""A model before it is loaded: its shape, its tokens of prompts, and what it will hold in memory,
counted from shapes.

What a measurement holds beside the model is in `measure.memory`. Time is not forecast: the first
steps of a run measure it.

Cost: reading a configuration and a tokenizer, once a model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Unpack

import torch

from ostools import tasks
from ostools.measure.task_prompt import CHAT, FEW_SHOT, Elicitation, elicitation_for, few_shot_text
from ostools.mitigations import Mitigation, optional
from ostools.models import EncodingOptions
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.checks import check_dtypes
from ostools.models.files.config import check_config, quiet, read_config, read_tokenizer
from ostools.models.shape import Shape
from ostools.models.tokens import count_tokens, prompt_ids, require_chat, required
from ostools.tasks import CollapseTask, Task
from ostools.tasks.questions import question

LIBRARIES = 672 << 20
"""Bytes that a process holds before it has a model: Python, torch, transformers and what they keep.
"""
_OF_WORD = 1000
"""Bytes of a tokenizer for each of its words: 0.24 GB of Gemma's 262,144."""
_SHORT, _SPECIAL = 64, 4
"""Bytes of a text, its special tokens among them, that is forecast as one token a byte: of a large
model that is nothing beside its weights.
"""
_DTYPE_BYTES = {"F8_E4M3": 1, "F32": 4, "F64": 8}


@dataclass(frozen=True)
class Forecast:
    """Bytes, forecast and not measured. `memory`: at the peak, the libraries and the model among
    them (on a GPU those of the GPU, and of the model alone); `work`: of them what the measurement
    takes beside the loaded model, None where nothing is known of it; `program`: of them what Python
    and the libraries take; `needed`: what this process does not hold yet, without the pages of the
    model's files, which the system takes back."""

    memory: int
    work: int | None = None
    needed: int = 0
    program: int = 0


@dataclass(frozen=True)
class LongestPrompt:
    """Tokens of the longest prompt that a measurement reads, and of the right answer to it; parts
    that are counted first.
    """

    tokens: int
    answer: int = 0
    counts: int = 0


@dataclass(frozen=True)
class Unloaded:
    """A model that would be loaded in `dtype` on a device of `kind` ("cpu", "cuda"). `limit`: bytes
    that the work may take beside it, where the work can be fitted to that. `encoding`: how texts
    are put to it. A directory with a configuration and a tokenizer, and without weights, is enough:
    its parameters are then counted from its shape. Raises `InputError` as loading would."""

    source: Checkpoint
    dtype: torch.dtype
    kind: str
    limit: int | None = None
    encoding: EncodingOptions = field(default_factory=EncodingOptions, hash=False)

    @property
    def shape(self) -> Shape:
        """Shape by the configuration."""
        return _shape(self.source, self.dtype, self.kind)

    def pos(self, prompt: str | Sequence[int]) -> int:
        """Tokens of a prompt, given as text or as ids; of a short text at most as many, where
        reading the tokenizer would take longer than all else."""
        if not isinstance(prompt, str):
            return len(prompt)
        most = len(prompt.encode()) + _SPECIAL
        is_short = most <= min(_SHORT, self.shape.context) and not self.encoding.get("chat")
        if is_short and self.source.has_large_tokenizer:
            return most
        return count_tokens(self._tokenizer(), prompt, **self.encoding)

    def longest(
        self,
        task: Task | CollapseTask | str,
        lengths: Iterable[int],
        *,
        seed: int = 0,
        mitigation: Mitigation | str | None = None,
        elicitation: Elicitation | None = None,
        **encoding: Unpack[EncodingOptions],
    ) -> LongestPrompt:
        """The longest prompt of a task; `elicitation`: as `evaluate` asks them, None: alone, in a
        chat where there is a template."""
        form = tasks.pairs_or_task(task) if isinstance(task, str) else task
        length, mitigation_object = max(lengths), optional(mitigation)
        if not isinstance(form, Task):
            pair_list = form.pairs(_Encoder(_tokenizer(self.source)), [length], seed)
            return LongestPrompt(max(len(pair.extended) for pair in pair_list))
        tokenizer = self._tokenizer()
        if elicitation is not None:
            encoding |= {"chat": elicitation == CHAT}
        if encoding.get("chat") is None:
            encoding |= {"chat": bool(tokenizer.chat_template)}
        require_chat(**encoding)
        task_question = question(form, length, seed=seed, mitigation=mitigation_object)
        text, line = task_question.text, task_question.line
        if elicitation == FEW_SHOT:
            text = "".join(few_shot_text(task_question, mitigation_object))
        token_count = count_tokens(tokenizer, text, **encoding)
        return LongestPrompt(
            token_count, count_tokens(tokenizer, line) if line.strip() else 0, task_question.counts
        )

    def elicitation(
        self,
        task: Task | str,
        elicitation: Elicitation | None = None,
        chat: bool | None = None,
    ) -> Elicitation:
        trained = self.source.trained_lengths
        return elicitation_for(tasks.task(task), self._tokenizer(), trained, elicitation, chat)

    def _tokenizer(self) -> Any:
        """The tokenizer; `InputError` for none."""
        return required(_tokenizer(self.source))

    @property
    def _weights(self) -> tuple[int, int]:
        """How many numbers the weights are, and the bytes of the two largest in the files."""
        if not self.source.has_weights:
            return self.shape.parameters, 0
        tensors = self.source.weights.values()
        counts = [(math.prod(tensor.get_shape()), tensor.get_dtype()) for tensor in tensors]
        sizes = sorted(count * _DTYPE_BYTES.get(dtype, 2) for count, dtype in counts)
        return sum(count for count, _ in counts), sum(sizes[-2:])

    @property
    def held_bytes(self) -> int:
        """Bytes of the loaded weights."""
        return self._weights[0] * self.dtype.itemsize

    def forecast(self, work: int) -> Forecast:
        """What loading it takes, and so many bytes of work beside it."""
        model, largest, program = self.held_bytes, 0, 0
        if self.kind == "cpu":
            model += _OF_WORD * self.shape.d_vocab
            # Weights are read and cast one after the other, a few at a time: the embedding and an
            # output layer of its own may stand beside what they are cast to.
            largest, program = self._weights[1], LIBRARIES
        return Forecast(program + model + max(largest, work), work, model + work, program)


@lru_cache(maxsize=4)
def _tokenizer(source: Checkpoint) -> Any:
    with quiet():
        return read_tokenizer(source)


class _Encoder:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        tokenizer = required(self.tokenizer)
        return [tuple(prompt_ids(tokenizer, text)) for text in texts]

    def token(self, index: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(index))


@lru_cache(maxsize=64)
def _shape(source: Checkpoint, dtype: torch.dtype, kind: str) -> Shape:
    """A model is read once, and not for each of its cells."""
    family = check_config(source)
    shape = Shape.of_settings(source.config, dtype, kind)
    if shape is None:
        with quiet():
            shape = Shape.of_config(read_config(source, family), dtype, kind)
    if source.has_weights:
        check_dtypes(source.dtypes, family, source.directory)
    return shape
