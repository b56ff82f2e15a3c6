"""What a report asks of a model: its sections, their tasks, lengths and formats; what is measured only where it is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostools.measure.bounds.variants import VARIANTS
from ostools.models.shape import Shape

CASTS = ("float32", "bfloat16")
ONES, LONGEST_WINDOW = "figure-5a", 1024
"""The prompt of ones, whose lengths go on past the model's sliding window, where that has at most so many tokens."""
FORMATS = (*CASTS, "float16", "bfloat16-weights", "int8-weights", "bfloat16-residual", "int8-kv", "float8_e4m3fn-kv")
"""What the section on precision compares on one prompt."""
EVALUATION = ("copy-last:uniform=true", "count-ones-bernoulli")
"""Tasks whose prompts are drawn. A share of right answers then has an interval, and knowing the task does not give the
answer."""
JUDGED = "count-ones-bernoulli"
"""The task by which the section on failure stages asks where answers are lost: counting, where the paper expects that."""
JUDGED_LENGTHS, JUDGED_SEEDS, JUDGED_DTYPES = (4, 8, 16, 32, 64), tuple(range(12)), ("float32",)
STUDY_LENGTHS = tuple(range(4, 37, 4))
"""The lengths of the study of mitigations: as few as can decide about two of them. Its task is that of `BEHAVIOUR` with a share
of right answers nearest to one half."""
MITIGATIONS = ("separator:every=3", "hint")
"""The paper's comma (Section 4, against collapse) and its hint (Section 3.1, for copying)."""
HUGE, HUGE_TOKENS = 2e9, 1e12
"""From so many parameters of the blocks on a CPU takes over half an hour for the section on sensitivity; of every layer from so
many parameters times tokens on."""

PASSAGES, PASSAGE_TOKENS = 6, 36
"""How many natural passages, two of each kind, show whether the middle of a text counts for less; tokens of each."""


@dataclass(frozen=True)
class Extent:
    """How much of a kind is measured: every so many lengths of collapse, and the formats; the lengths and seeds of answers, the
    seeds of the study, the forms of the path sum and how they bound an MLP; and of position, the cotangents of a sketch.

    `words` says what is less than on a small model, and how to have all of it; `length_words` says it of the default lengths of
    collapse."""

    collapse_step: int
    formats: tuple[str, ...]
    answer_lengths: tuple[int, ...]
    answer_seeds: tuple[int, ...]
    study_seeds: tuple[int, ...]
    forms: tuple[str, ...]
    mlp_norm: str
    cotangents: int
    words: str = ""
    length_words: str = ""

    @property
    def answers(self) -> dict[str, Any]:
        """What `evaluate` is asked."""
        return {"lengths": self.answer_lengths, "seeds": self.answer_seeds}

    def lengths(self, longest: int) -> list[int]:
        """The default lengths of collapse: the first ones all, then every `collapse_step`."""
        return sorted(
            {*range(1, min(8, longest) + 1), *range(self.collapse_step, longest + 1, self.collapse_step), longest}
        )


_CHEAP = tuple(name for name in VARIANTS if name != "windowed(1)")
WHOLE = Extent(1, FORMATS, (4, 8, 16, 32, 64), tuple(range(8)), tuple(range(4)), _CHEAP, "svd", 8)
REDUCED = Extent(
    16,
    (*CASTS, "float16"),
    (4, 8, 16, 32),
    tuple(range(4)),
    (0,),
    ("local", "theorem-5.1"),
    "product",
    4,
    "Answers are measured at four lengths of four sequences each, and mitigations on one sequence a length. Of the path sum's "
    "forms the report has Theorem 5.1's and one certified bound, which bounds an MLP by the product of its "
    "matrices' norms. `ostools evaluate`, `mitigate`, `bounds` and `collapse` measure more.",
    "Collapse is measured at the lengths 1 to 8 and at every sixteenth one after that; `--lengths 1:256` measures all.",
)
LARGE = 3e7
"""From so many parameters of the blocks on a report measures `REDUCED`: the whole takes over ten minutes from there on."""


def extent_of(shape: Shape) -> Extent:
    """How much a report measures of a model of that shape."""
    return REDUCED if shape.n_layers * shape.block_parameters > LARGE else WHOLE


NAMES = (
    "collapse",
    "precision",
    "position",
    "sensitivity",
    "layers",
    "attention",
    "evaluate",
    "failure-stage",
    "mitigations",
)
"""What a report can be asked for, in its order."""


def unasked(shape: Shape, pos: int) -> dict[str, str]:
    """The sections that are left out where nobody asks for them by name, by the size of the model and of its prompt of `pos`
    tokens, with the reason."""
    parameters, on_cpu = shape.n_layers * shape.block_parameters, shape.device == "cpu"
    size = f"the blocks have {parameters / 1e6:,.0f} million parameters"
    reasons = {
        "sensitivity": (on_cpu and parameters > HUGE, f"{size}, and it would take over half an hour on a CPU"),
        "layers": (on_cpu and parameters * pos > HUGE_TOKENS, f"{size}, and {pos} tokens are many for a CPU"),
        "failure-stage": (on_cpu and parameters > LARGE, f"{size}, and its probes would take minutes on a CPU"),
    }
    return {name: f"{reason}; `--section {name}` measures it" for name, (is_dear, reason) in reasons.items() if is_dear}
