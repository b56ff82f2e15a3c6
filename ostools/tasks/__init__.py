"""The paper's prompts. `task("count-ones")` gives a task that a model answers.

`task("figure-5a", CollapseTask)` gives one of pairs: two prompts for every length, whose last
tokens `collapse` compares. `figure_5a()` to `figure_5d()`, the repeats of other tokens, and pairs
of token ids are of this kind too.
"""

from ostools.tasks.appendix_c import NAMES as APPENDIX_NAMES
from ostools.tasks.appendix_c import AppendixTask
from ostools.tasks.base import Task
from ostools.tasks.pairs import (
    FIGURE_5,
    CollapseTask,
    Encoder,
    Figure5Task,
    ItemsAs,
    Pair,
    figure_5a,
    figure_5b,
    figure_5c,
    figure_5d,
    theorem_pair,
)
from ostools.tasks.questions import (
    REPEATING_TASKS,
    Question,
    label,
    names,
    pairs_or_task,
    prompts_jsonl,
    questions,
    task,
)
from ostools.tasks.repeats import PairsOfIds, RepeatedIds, RepeatTask, letters

__all__ = [
    "APPENDIX_NAMES",
    "FIGURE_5",
    "REPEATING_TASKS",
    "AppendixTask",
    "CollapseTask",
    "Encoder",
    "Figure5Task",
    "ItemsAs",
    "Pair",
    "PairsOfIds",
    "Question",
    "RepeatTask",
    "RepeatedIds",
    "Task",
    "figure_5a",
    "figure_5b",
    "figure_5c",
    "figure_5d",
    "label",
    "letters",
    "names",
    "pairs_or_task",
    "prompts_jsonl",
    "questions",
    "task",
    "theorem_pair",
]
