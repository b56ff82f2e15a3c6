"""The extent of a report on a model of one size: its tasks, lengths, formats and prompts."""

from dataclasses import dataclass, replace
from typing import Any

from ostools.measure.bounds.variants import VARIANTS, MlpNorm
from ostools.measure.study.verdicts import About
from ostools.models.shape import Shape

CASTS = ("float32", "bfloat16")
FORMATS = (
    *CASTS,
    "float16",
    "bfloat16-weights",
    "int8-weights",
    "bfloat16-residual",
    "int8-kv",
    "float8_e4m3fn-kv",
)
"""The formats that the section on precision compares on one prompt."""
ONES, LONGEST_WINDOW = "figure-5a", 1024
"""The prompt of ones: its lengths go on past the model's sliding window, of at most so many tokens.
"""
EVALUATION = ("copy-last:uniform=true", "count-ones-bernoulli")
"""Tasks with drawn prompts: a share of right answers then has an interval, and is not known by the
task.
"""
FAILURE_STAGE_TASK, FAILURE_STAGE_LENGTHS = "count-ones-bernoulli", (4, 8, 16, 32, 64)
"""Counting, where the paper expects that answers are lost; a verdict on where they are wrong counts
lengths.
"""
STUDY_LENGTHS = tuple(range(4, 37, 4))
"""The study of mitigations: as few lengths as can decide about two of them."""
MITIGATIONS = ("separator:every=3", "hint")
"""The paper's comma (Section 4, against collapse) and its hint (Section 3.1, for copying)."""
PASSAGE_TOKENS = 36
"""Tokens of each natural passage of the section on position."""
LARGE, VERY_LARGE = 3e7, 3e8
"""Parameters of the blocks from which on a whole report takes over ten minutes, and one of a
`REDUCED` extent does.
"""
DEAR = 2e9
"""Parameters of the blocks from which on a section of backward passes, or of sixty answers, takes
over half an hour.
"""


QUICK_WORDS = "This report is a quick one: without `--quick` it measures more. "
NOT_QUICK = ("precision", "failure-stage", "mitigations")
"""The sections that a quick report has only by name."""


@dataclass(frozen=True)
class Extent:
    """How much of each kind is measured on a model of one size.

    collapse_first, collapse_step, collapse_longest: the lengths of collapse are the first, and
        every so many up to the longest.
    casts: the dtypes in which each prompt's pair is compared; formats: those of the section on
        precision, `CASTS` first.
    answer_seeds, stage_seeds, study_seeds: sequences a length of `evaluate`, of `failure_stage` and
        of the study.
    study_measures: of the study. forms, mlp_norm: of the path sum. passages, cotangents: of the
        position effect and its sketch.
    untrained: whether the architecture before training stands beside that effect and the probes.
    """

    collapse_first: tuple[int, ...]
    collapse_step: int
    collapse_longest: int
    casts: tuple[str, ...]
    formats: tuple[str, ...]
    answer_lengths: tuple[int, ...]
    answer_seeds: tuple[int, ...]
    stage_seeds: tuple[int, ...]
    study_seeds: tuple[int, ...]
    study_measures: tuple[About, ...]
    forms: tuple[str, ...]
    mlp_norm: MlpNorm
    passages: int
    cotangents: int
    untrained: bool = True

    @property
    def answers(self) -> dict[str, Any]:
        """The lengths and seeds of `evaluate`."""
        return {"lengths": self.answer_lengths, "seeds": self.answer_seeds}

    def lengths(self, longest: int) -> list[int]:
        """The default lengths of collapse of a model that holds sequences of at most `longest`
        items.
        """
        longest = min(longest, self.collapse_longest)
        steps = range(self.collapse_step, longest + 1, self.collapse_step)
        return sorted({*(n for n in self.collapse_first if n <= longest), *steps, longest})

    def words(self, quick: bool) -> str:
        """What is less than on a small model, and how to have all of it."""
        if self.collapse_step == 1:
            return ""
        return (
            f"{QUICK_WORDS * quick}Answers are measured at {len(self.answer_lengths)} lengths of "
            f"{len(self.answer_seeds)} sequences each, mitigations on {len(self.study_seeds)} "
            f"sequences a length, the position over {self.passages} passages with "
            f"{self.cotangents} cotangents, and collapse by default at every "
            f"{self.collapse_step}th length; bounds are fewer, or none. `ostools evaluate`, "
            "`mitigate`, `bounds` and `collapse` measure more."
        )


FULL = Extent(
    collapse_first=tuple(range(1, 9)),
    collapse_step=1,
    collapse_longest=256,
    casts=CASTS,
    formats=FORMATS,
    answer_lengths=(4, 8, 16, 32, 64),
    answer_seeds=tuple(range(8)),
    stage_seeds=tuple(range(12)),
    study_seeds=tuple(range(4)),
    study_measures=("answers", "log_probability", "collapse"),
    forms=tuple(VARIANTS),
    mlp_norm="svd",
    passages=6,
    cotangents=8,
)
REDUCED = replace(
    FULL,
    collapse_step=16,
    casts=(*CASTS, "float16"),
    formats=(*CASTS, "float16"),
    answer_lengths=(4, 8, 16, 32),
    answer_seeds=tuple(range(6)),
    stage_seeds=tuple(range(8)),
    study_seeds=tuple(range(3)),
    study_measures=("answers", "log_probability"),
    forms=("local", "theorem-5.1"),
    mlp_norm="product",
    cotangents=4,
)
"""A verdict on answers rests on 24 questions, and one on a mitigation on 27."""
LEAST = replace(
    REDUCED,
    collapse_first=(1, 2, 4, 8),
    collapse_step=32,
    casts=("bfloat16",),
    formats=CASTS,
    stage_seeds=tuple(range(6)),
    study_measures=("answers",),
    forms=(),
    untrained=False,
)
"""Of a very large model. A certified bound of one takes minutes, and is tens of powers of ten above
what is measured.
"""
QUICK: dict[str, Any] = {
    "collapse_first": (1, 2, 4, 8),
    "collapse_step": 32,
    "formats": CASTS,
    "answer_lengths": (4, 16),
    "answer_seeds": (0, 1),
    "passages": 4,
    "untrained": False,
}
QUICKEST: dict[str, Any] = {**QUICK, "collapse_longest": 128, "passages": 3}
"""The same of a very large model."""


def extent_of(shape: Shape, quick: bool = False) -> Extent:
    """The extent of a report on a model of that shape. `quick`: the least that still says
    something.
    """
    parameters = shape.n_layers * shape.block_parameters
    extent = LEAST if parameters > VERY_LARGE else REDUCED if parameters > LARGE or quick else FULL
    if not quick:
        return extent
    return replace(extent, **(QUICKEST if extent == LEAST else QUICK))
