"""A mitigation around a measurement on prompts: the text that it rewrites, the block that passes
run in, and that it acts.

Cost beside the measurement, for every prompt and every part of the mitigation that changes the
pass: two plain passes with whole patterns and the logits of all tokens; one more for several parts
together.

The precision decides whether it acts (`EffectStatus`): what computes a 16-bit model in float32
changes nothing of a float32 copy, and numbers taken there say nothing of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ostools import mitigations
from ostools.ground import InputError, TransformerBridge
from ostools.measure.passes.precisions import Precision
from ostools.measure.position import (
    ANSWER,
    Position,
    ReadPrompt,
    predicted_token,
    read_at,
    reading,
    require_prompt_end,
)
from ostools.measure.prompts import as_prompt, prompt_named
from ostools.measure.task_prompt import TaskPrompt, encoding_of, render_question
from ostools.mitigations import Mitigation, acts, changes_pass, label, parts
from ostools.mitigations.named import AND, NONE
from ostools.models import EncodingOptions, Prompt, encode
from ostools.models.tokens import token_text
from ostools.tasks import Question
from ostools.tasks.questions import question


class InactiveMitigationError(InputError):
    """The mitigation changes nothing here, so that numbers under it would be those without it."""


QUESTIONS = "a task's question: ost.tasks.questions(task, lengths=[n])[0]"
"""What to give in the place of a text, for a mitigation of the sequence."""


@dataclass(frozen=True)
class MitigatedPrompts:
    """Prompts of the measurement `what`, rewritten by a mitigation.

    silent: for each prompt the parts of the mitigation that left its text as it was, and so have to
        change the pass.
    questions: for each prompt the task's question up to the position of that name; None for a text
        or a `Prompt`.
    """

    what: str
    mitigation: Mitigation | None
    prompts: tuple[Prompt, ...]
    silent: tuple[tuple[Mitigation, ...], ...]
    questions: tuple[ReadPrompt | None, ...]

    @classmethod
    def of(
        cls,
        what: str,
        model: TransformerBridge,
        prompts: Sequence[str | Prompt | Question],
        mitigation: Mitigation | str | None,
        position: Position | None = None,
    ) -> "MitigatedPrompts":
        """`position`: where the questions among the prompts are read.

        Raises `InputError` for what is no prompt, for a mitigation of a task's sequence, for one of
        the text where only tokens are given, and for a position that a prompt does not have;
        `MitigationError` for an unknown mitigation."""
        acting = None if mitigation is None else mitigations.mitigation(mitigation)
        if not prompts:
            raise InputError("expected at least one prompt, found an empty list")
        rows = []
        for index, raw_prompt in enumerate(prompts):
            with prompt_named(prompts, index):
                rows.append(_encoded(what, model, raw_prompt, acting, position))
        return cls(what, acting, *zip(*rows, strict=True))

    @classmethod
    def of_rewritten(
        cls, what: str, prompt: Prompt, mitigation: Mitigation | None
    ) -> "MitigatedPrompts":
        """Take a prompt that the mitigation has rewritten already; its parts with hooks alone are
        still to be shown to act.
        """
        silent = tuple(
            part
            for part in parts(mitigation)
            if not rewrites(part, "prompt") and changes_pass(part)
        )
        return cls(what, mitigation, (prompt,), (silent,), (None,))

    @property
    def prompt(self) -> Prompt:
        """The prompt of a measurement of one."""
        return self.prompts[0]

    @property
    def provenance_entry(self) -> dict[str, object]:
        """The mitigation of all prompts; of several that differ, each prompt's."""
        labels = list(map(self._label, self.questions))
        if set(labels) == {NONE}:
            return {}
        return {"mitigation": labels[0] if len(set(labels)) == 1 else labels}

    def _label(self, read: ReadPrompt | None) -> str:
        """What a prompt is measured under: also what its question was made under."""
        acting = label(self.mitigation)
        made_under = read.task_prompt.mitigation if read and read.task_prompt.rewritten else NONE
        if made_under in (NONE, acting):
            return acting
        return made_under if acting == NONE else AND.join((made_under, acting))

    def described(self, model: TransformerBridge, index: int = 0) -> dict[str, object]:
        """Provenance entries of a prompt: the mitigation, how its text was encoded, and of a
        question where it is read and what `model` predicts there, in its own dtype. One pass for a
        question."""
        of_prompt = self._label(self.questions[index])
        entries: dict[str, object] = {} if of_prompt == NONE else {"mitigation": of_prompt}
        entries |= self.prompts[index].provenance
        if (read := self.questions[index]) is None:
            return entries
        with mitigations.running(model, self.mitigation):
            token = predicted_token(model, torch.tensor(read.ids))
        form = read.task_prompt
        next_token = form.length, form.seed, token_text(model.tokenizer, token)
        return entries | {"read_at": reading(model, [read]), "next_tokens": [next_token]}

    @contextmanager
    def acting(self, work: TransformerBridge) -> Iterator[None]:
        """Run `work`, the model in the precision that is measured, under the mitigation inside the
        block, once it was seen to act (`require_acting`).
        """
        if self.mitigation is None:
            yield
            return
        self.require_acting(work)
        with self.mitigation.hooks(work):
            yield

    def require_acting(self, work: TransformerBridge) -> None:
        """Verify a pass of `work` under the mitigation over every prompt (`mitigations.running`),
        and that every silent part changes a logit, bit for bit.

        Raises `InputError` for one that does not: its numbers would be those without it.
        """
        for number, prompt in enumerate(self.prompts):
            if self.silent[number] != (self.mitigation,):  # else it is verified while it is tried
                with torch.no_grad(), mitigations.running(work, self.mitigation):
                    work(prompt.ids[None].to(next(work.parameters()).device), use_cache=False)
            for part in self.silent[number]:
                if not acts(work, part, prompt.ids):
                    count = len(self.prompts)
                    which = f"prompt {number + 1} of {count}" if count > 1 else "this prompt"
                    raise InactiveMitigationError(
                        f"{self.what}: expected a mitigation that changes {which}, found that "
                        f"{label(part)} does not change its text, nor a logit in "
                        f"{_dtype_name(work)}, in which it is measured: leave it out, or choose "
                        "one that acts here"
                    )


def _encoded(
    what: str,
    model: TransformerBridge,
    raw_prompt: object,
    mitigation: Mitigation | None,
    position: Position | None,
) -> tuple[Prompt, tuple[Mitigation, ...], ReadPrompt | None]:
    """A prompt in tokens as the mitigation rewrites it, the parts that left it as it was, and, of a
    task's question, where it is read. Of a chat the user's message is rewritten."""
    if isinstance(raw_prompt, Question):
        task_prompt, silent = pose(model, raw_prompt, mitigation)
        read = read_at(model, task_prompt, position or ANSWER)
        return read.prompt(model), silent, read
    if not isinstance(raw_prompt, str | Prompt):
        raise InputError(
            f"expected a text, a Prompt or a task's question, found {type(raw_prompt).__name__}; "
            "for token ids use ost.Prompt.from_ids(model, ids)"
        )
    if position is not None:
        require_prompt_end(position, "a prompt without a task")
    if mitigation is None:
        return as_prompt(model, raw_prompt), (), None
    text = raw_prompt if isinstance(raw_prompt, str) else raw_prompt.text
    if isinstance(raw_prompt, Prompt) and text is not None and raw_prompt.chat is not None:
        text = text[slice(*raw_prompt.chat.message)]
    rewritten, silent = rewritten_text(what, text, mitigation)
    if rewritten is None or rewritten == text:
        return as_prompt(model, raw_prompt), silent, None
    encoding = encoding_of(raw_prompt) if isinstance(raw_prompt, Prompt) else EncodingOptions()
    return encode(model, rewritten, **encoding), silent, None


def rewritten_text(
    what: str, text: str | None, mitigation: Mitigation | None, task: str = QUESTIONS
) -> tuple[str | None, tuple[Mitigation, ...]]:
    """A text (None: a prompt that is known by its tokens alone) as the mitigation's parts rewrite
    it, in their order, and the parts that left it as it was.

    Raises `InputError` for a part that rewrites the sequence of a task, and names `task` as what to
    give; and for one that rewrites the text where there is none.
    """
    silent = []
    for part in parts(mitigation):
        if rewrites(part, "sequence"):
            raise InputError(
                f"{what}: {label(part)} rewrites the sequence, which is not known of this prompt: "
                f"give {task}"
            )
        if not rewrites(part, "prompt"):
            silent.append(part)
        elif text is None:
            raise InputError(
                f"{what}: {label(part)} rewrites the prompt, which is not known of this prompt: "
                "give the text"
            )
        elif (new := mitigations.rewrite(part, text)) == text:
            silent.append(part)
        else:
            text = new
    return text, tuple(silent)


def pose(
    model: TransformerBridge, task_question: Question, mitigation: Mitigation | None
) -> tuple[TaskPrompt, tuple[Mitigation, ...]]:
    """A task's question as the mitigation rewrites it, and the parts that left its text as it was.

    Raises `InputError` for a part that rewrites it, where it was made under another mitigation or
    stands after examples.
    """
    form, length, seed = task_question.task, task_question.length, task_question.seed
    silent = tuple(
        part
        for part in parts(mitigation)
        if not (rewriting(part) and question(form, length, seed=seed, mitigation=part).rewritten)
    )
    if not rewriting(mitigation) or task_question.mitigation == label(mitigation):
        return render_question(model, task_question), silent
    if task_question.mitigation != NONE or task_question.prefill is not None:
        raise InputError(
            f"{label(mitigation)}: expected a task's question as it is made without a mitigation "
            "or examples, found one under "
            f"{task_question.mitigation!r}: give ost.tasks.questions(task, lengths=[n])[0]"
        )
    rewritten_question = question(form, length, seed=seed, mitigation=mitigation)
    is_rendered = isinstance(task_question, TaskPrompt)
    encoding = encoding_of(task_question.prompt) if is_rendered else EncodingOptions()
    return render_question(model, rewritten_question, **encoding), silent


def rewrites(part: Mitigation, kind: str) -> bool:
    return getattr(type(part), kind) is not getattr(Mitigation, kind)


def rewriting(mitigation: Mitigation | None) -> list[Mitigation]:
    """The parts of a mitigation that rewrite sequences or prompts; the others are of the forward
    pass alone.
    """
    return [
        part for part in parts(mitigation) if rewrites(part, "sequence") or rewrites(part, "prompt")
    ]


def of_the_pass(what: str, mitigation: Mitigation | str | None, instead: str) -> Mitigation | None:
    """The mitigation, where prompts are fixed. Raises `InputError`, which says `instead`, for one
    that rewrites them.
    """
    mitigation_object = mitigations.optional(mitigation)
    for part in rewriting(mitigation_object):
        raise InputError(
            f"{what}: expected a mitigation of the forward pass, found {label(part)}, which "
            f"rewrites prompts: {instead}"
        )
    return mitigation_object


def _dtype_name(model: TransformerBridge) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


ACTIVE, INACTIVE, REFUSED = "active", "inactive", "refused"


class EffectStatus:
    """Effect status of one mitigation, or none, on `model` as the user gave it and on copies of it.

    Each part of a composed one is tried alone: a part that a copy silences must not hide behind one
    that acts there.
    """

    def __init__(self, model: TransformerBridge, mitigation: Mitigation | None) -> None:
        self.model, self.mitigation = model, mitigation
        self.parts = [part for part in parts(mitigation) if changes_pass(part)]
        self._known: dict[tuple[int, tuple[int, ...]], bool] = {}

    def status(
        self, task_prompt: TaskPrompt, ids: Sequence[int], on: TransformerBridge | None = None
    ) -> tuple[str, str]:
        """The status of a question measured over `ids`, `on` that model (None: the user's own), and
        the reason of a refusal. A window may be narrower than the prompt with the line that is
        begun, and wider than the prompt.

        Active: its text, or a logit bit for bit, is another; inactive: neither is, there and on the
        user's model; refused: a part of the mitigation acts on the user's model and not there.
        Cost: two forward passes for each part with hooks.
        """
        if self.mitigation is None:
            return ACTIVE, ""
        on, active = on or self.model, task_prompt.rewritten
        for index, part in enumerate(self.parts):
            if self._acts(on, index, tuple(ids)):
                active = True
            elif on is not self.model and self._acts(self.model, index, tuple(ids)):
                return REFUSED, f"{label(part)} changes nothing in {_dtype_name(on)}"
        return (ACTIVE if active else INACTIVE), ""

    def _acts(self, on: TransformerBridge, index: int, ids: tuple[int, ...]) -> bool:
        if on is not self.model:
            return acts(on, self.parts[index], torch.tensor(ids))
        if (index, ids) not in self._known:
            self._known[index, ids] = acts(on, self.parts[index], torch.tensor(ids))
        return self._known[index, ids]


def effect_entry(
    model: TransformerBridge,
    mitigation: Mitigation | None,
    precisions: Iterable[Precision],
    prompts: Iterable[Sequence[int]],
    rewritten: bool,
) -> dict[str, Any]:
    """The provenance's `status` of a measurement of many prompts under a mitigation: active where
    it rewrote one, or changes a logit of one in one of the precisions; else inactive.

    Cost, for a mitigation with hooks: two passes over the longest prompt, and where they are alike
    over all, in every precision.
    """
    if mitigation is None:
        return {}
    longest_first = [torch.tensor(ids) for ids in sorted(prompts, key=len, reverse=True)]
    is_active = rewritten or any(
        acts(view, mitigation, ids)
        for view in (precision.prepared(model) for precision in precisions)
        for ids in longest_first
    )
    return {"status": ACTIVE if is_active else INACTIVE}


def of_pair(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    """Effect status of an (n, n + 1) pair: active where one of the two questions is."""
    order = (ACTIVE, REFUSED, INACTIVE)
    return min(first, second, key=lambda status: order.index(status[0]))
