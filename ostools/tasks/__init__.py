"""The paper's prompts. `task("count-ones")` gives a task that a model answers.

`task("figure-5a", CollapseTask)` gives one of pairs: two prompts for every length, whose last
tokens `collapse` compares. `figure_5a()` to `figure_5d()`, the repeats of other tokens, pairs of
token ids, and `task_pairs` are of this kind too.
"""

from ostools.tasks.appendix_c import NAMES as APPENDIX_NAMES
from ostools.tasks.appendix_c import AppendixTask
from ostools.tasks.base import Task
from ostools.tasks.named import COLLAPSE_TASKS, REPEATING_TASKS, label, names, repeating, task
from ostools.tasks.pairs import (
    FIGURE_5,
    TASK_PAIRS,
    CollapseTask,
    Encoder,
    Figure5Task,
    ItemsAs,
    Pair,
    TaskPairs,
    figure_5a,
    figure_5b,
    figure_5c,
    figure_5d,
    task_pairs,
    theorem_pair,
)
from ostools.tasks.questions import Question, prompts_jsonl, questions
from ostools.tasks.repeats import (
    REPEATS,
    PairsOfIds,
    RepeatedIds,
    RepeatTask,
    last_token,
    letters,
    words,
)

__all__ = [
    "APPENDIX_NAMES",
    "COLLAPSE_TASKS",
    "FIGURE_5",
    "REPEATING_TASKS",
    "REPEATS",
    "TASK_PAIRS",
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
    "TaskPairs",
    "figure_5a",
    "figure_5b",
    "figure_5c",
    "figure_5d",
    "label",
    "last_token",
    "letters",
    "names",
    "prompts_jsonl",
    "questions",
    "repeating",
    "task",
    "task_pairs",
    "theorem_pair",
    "words",
]
