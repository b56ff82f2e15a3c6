"""Task that a model answers: a sequence, the words around it, and the answer, known from what was
generated.

A third party's task is a subclass, found by the entry-point group `ostools.tasks`. No torch is
needed here.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostools.ground import InputError, checked_seeds


class AnyTask(ABC):
    """Facts that every task states: one that a model answers (`Task`), and pairs of prompts to
    compare (`CollapseTask`).

    name: how results and commands call it.
    """

    name: str

    @property
    def random(self) -> bool:
        """Whether the sequence depends on the seed."""
        return False

    @property
    def trained_as(self) -> str | None:
        """Under which name a model's card lists the lengths that it was trained on; None where no
        training can be meant.
        """
        return None


class Task(AnyTask):
    """One kind of question, at every length. Subclasses are small frozen dataclasses whose fields
    define their prompts.

    A mitigation may insert text between the items: what stands in the prompt then are `pieces`, the
    items among them in their order. `sequence`, `parts` and `key` take either.
    """

    @property
    def numeric(self) -> bool:
        """Whether the answer is a number, from which another is more or less far."""
        return False

    @property
    def reasons(self) -> bool:
        """Whether the prompt asks for reasoning before the final line."""
        return False

    @property
    def lead(self) -> str:
        """Text between the prompt and the answer line: a line end, or a blank after a line begun
        for the model.
        """
        return "\n"

    @property
    def example_task(self) -> "Task":
        """The task whose questions are worked examples in a few-shot prompt: never the corrupt
        form; with answers that differ, where it has such.
        """
        task: Any = self
        return replace(task, corrupt=False) if _has_corrupt_form(self) else self

    def corrupted(self) -> "Task":
        """Return the task of the corrupt run of activation patching (`ost.patch`), with the other
        value of the field `corrupt`: its prompt at a length and seed differs from this one's in
        what decides the answer, and in nothing else. Raises `InputError` for a task that has no
        such field."""
        if not _has_corrupt_form(self):
            raise InputError(f"{self.name} has no corrupt form: give the corrupt prompt itself")
        task: Any = self
        return replace(task, corrupt=not task.corrupt)

    def named_answer(self, line: str, pieces: Sequence[str]) -> str | None:
        """The answer that a line names, right or wrong, where the prompt lists all that could be
        answers; else None.
        """
        return None

    @abstractmethod
    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The `length` items of the sequence. Raises `InputError` for a length that it
        cannot have.
        """

    @abstractmethod
    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        """The prompt in three: the words before the sequence, the sequence, the words after it."""

    @abstractmethod
    def key(self, pieces: Sequence[str]) -> str:
        """The right answer."""

    @abstractmethod
    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        """Indices of the items that carry the answer: the last digit of 1...10, every one that is
        counted.
        """

    def answer_line(self, answer: str) -> str:
        """The final line in which the prompt asks for the answer; the bare answer where it asks for
        none.
        """
        return answer

    def could_answer(self, line: str, pieces: Sequence[str]) -> bool:
        """Whether a line could be the answer, right or wrong, where no form is asked for and it is
        no number.

        The first such line is read as the answer; what stands before it is a preamble. Every line
        that is not blank, unless a task says more of its answers.
        """
        return True

    def prompt(self, length: int, seed: int = 0) -> str:
        """The whole prompt for a sequence of `length` items."""
        return "".join(self.parts(self.items(length, seed)))

    def answer(self, length: int, seed: int = 0) -> str:
        """The right answer to `prompt(length, seed)`."""
        return self.key(self.items(length, seed))


def seeds_of(task: AnyTask, seeds: object) -> list[int]:
    """The seeds that a task is asked with; more than the default are refused for one that draws
    nothing.
    """
    seed_list = checked_seeds(seeds)
    if seed_list != [0] and not task.random:
        raise InputError(
            f"{task.name} draws nothing at random, found seeds {seed_list}: leave them out"
        )
    return seed_list


def _has_corrupt_form(task: Task) -> bool:
    """Whether the task is a dataclass with the field `corrupt`."""
    return "corrupt" in getattr(task, "__dataclass_fields__", {})
