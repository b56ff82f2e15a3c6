"""The extent of a report on a model of one size: its tasks, lengths, formats and prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostools.measure.bounds.variants import VARIANTS
from ostools.models.shape import Shape

CASTS = ("float32", "bfloat16")
FORMATS = (*CASTS, "float16", "bfloat16-weights", "int8-weights", "bfloat16-residual", "int8-kv", "float8_e4m3fn-kv")
"""The formats that the section on precision compares on one prompt."""
ONES, LONGEST_WINDOW = "figure-5a", 1024
"""The prompt of ones: its lengths go on past the model's sliding window, of at most so many tokens."""
EVALUATION = ("copy-last:uniform=true", "count-ones-bernoulli")
"""Tasks with drawn prompts: a share of right answers then has an interval, and is not known by the task."""
FAILURE_STAGE_TASK, FAILURE_STAGE_LENGTHS = "count-ones-bernoulli", (4, 8, 16, 32, 64)
FAILURE_STAGE: dict[str, Any] = {"dtypes": ("float32",), "seeds": tuple(range(12))}
"""Counting, where the paper expects that answers are lost."""
STUDY_LENGTHS = tuple(range(4, 37, 4))
"""The study of mitigations: as few lengths as can decide about two of them."""
MITIGATIONS = ("separator:every=3", "hint")
"""The paper's comma (Section 4, against collapse) and its hint (Section 3.1, for copying)."""
PASSAGES, PASSAGE_TOKENS = 6, 36
"""Natural passages, two of each kind, of the section on position; tokens of each."""
LARGE = 3e7
"""Parameters of the blocks from which on a whole report takes over ten minutes."""


NOT_QUICK = ("precision", "failure-stage", "mitigations")
"""The sections that a quick report has only by name."""


@dataclass(frozen=True)
class Extent:
    """How much of each kind is measured on a model of one size.

    collapse_step: every so many lengths. forms, mlp_norm: of the path sum. cotangents: of the sketch
    of the position effect; untrained: whether the architecture before training is measured beside it.
    """

    collapse_step: int
    formats: tuple[str, ...]
    answer_lengths: tuple[int, ...]
    answer_seeds: tuple[int, ...]
    study_seeds: tuple[int, ...]
    forms: tuple[str, ...]
    mlp_norm: str
    cotangents: int
    untrained: bool = True

    @property
    def answers(self) -> dict[str, Any]:
        """The lengths and seeds of `evaluate`."""
        return {"lengths": self.answer_lengths, "seeds": self.answer_seeds}

    def lengths(self, longest: int) -> list[int]:
        """The default lengths of collapse: the first ones all, then every `collapse_step`."""
        steps = range(self.collapse_step, longest + 1, self.collapse_step)
        return sorted({*range(1, min(8, longest) + 1), *steps, longest})

    def words(self, default_lengths: bool) -> str:
        """What is less than on a small model, and how to have all of it; of collapse, where it has its default lengths."""
        if self.collapse_step == 1:
            return ""
        start = "" if self.untrained else "This report is a quick one: without `--quick` it measures more. "
        alone = "" if self.untrained else " and no untrained model beside it"
        text = (
            f"{start}Answers are measured at {len(self.answer_lengths)} lengths of {len(self.answer_seeds)} sequences each, "
            f"mitigations on one sequence a length, and the position with {self.cotangents} cotangents{alone}. Of the path "
            "sum's forms the report has Theorem 5.1's and one certified bound, which bounds an MLP by the product of its "
            "matrices' norms. `ostools evaluate`, `mitigate`, `bounds` and `collapse` measure more."
        )
        lengths = (
            f"the lengths 1 to 8 and at every {self.collapse_step}th one after that; `--lengths 1:256` measures all"
        )
        return f"{text} Collapse is measured at {lengths}." if default_lengths else text


FULL = Extent(1, FORMATS, (4, 8, 16, 32, 64), tuple(range(8)), tuple(range(4)), tuple(VARIANTS), "svd", 8)
_FORMS = ("local", "theorem-5.1")
REDUCED = Extent(16, (*CASTS, "float16"), (4, 8, 16, 32), tuple(range(4)), (0,), _FORMS, "product", 4)
QUICK = Extent(64, CASTS, (4, 16), tuple(range(2)), (0,), _FORMS, "product", 2, untrained=False)


def extent_of(shape: Shape, quick: bool = False) -> Extent:
    """The extent of a report on a model of that shape. `quick`: the least that still says something."""
    if quick:
        return QUICK
    return REDUCED if shape.n_layers * shape.block_parameters > LARGE else FULL
