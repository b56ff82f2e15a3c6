"""The paper's prompts. `task("count-ones")` gives a task that a model answers.

`task("figure-5a", CollapseTask)` gives one of pairs: two prompts for every length, whose last tokens `collapse` compares.
`figure_5a()` to `figure_5d()`, the repeats of other tokens, pairs of token ids, and `task_pairs` are of this kind too.
"""

from ostools.tasks.appendix_c import NAMES as APPENDIX_NAMES
from ostools.tasks.appendix_c import AppendixTask as AppendixTask
from ostools.tasks.base import Task as Task
from ostools.tasks.figure5 import FIGURE_5 as FIGURE_5
from ostools.tasks.figure5 import Figure5Task as Figure5Task
from ostools.tasks.figure5 import figure_5a as figure_5a
from ostools.tasks.figure5 import figure_5b as figure_5b
from ostools.tasks.figure5 import figure_5c as figure_5c
from ostools.tasks.figure5 import figure_5d as figure_5d
from ostools.tasks.named import COLLAPSE_TASKS as COLLAPSE_TASKS
from ostools.tasks.named import REPEATING_TASKS as REPEATING_TASKS
from ostools.tasks.named import label as label
from ostools.tasks.named import names as names
from ostools.tasks.named import repeating as repeating
from ostools.tasks.named import task as task
from ostools.tasks.pairs import TASK_PAIRS as TASK_PAIRS
from ostools.tasks.pairs import CollapseTask as CollapseTask
from ostools.tasks.pairs import Encoder as Encoder
from ostools.tasks.pairs import ItemsAs as ItemsAs
from ostools.tasks.pairs import Pair as Pair
from ostools.tasks.pairs import TaskPairs as TaskPairs
from ostools.tasks.pairs import task_pairs as task_pairs
from ostools.tasks.pairs import theorem_pair as theorem_pair
from ostools.tasks.questions import Question as Question
from ostools.tasks.questions import prompts_jsonl as prompts_jsonl
from ostools.tasks.questions import questions as questions
from ostools.tasks.repeats import REPEATS as REPEATS
from ostools.tasks.repeats import PairsOfIds as PairsOfIds
from ostools.tasks.repeats import RepeatedIds as RepeatedIds
from ostools.tasks.repeats import RepeatTask as RepeatTask
from ostools.tasks.repeats import last_token as last_token
from ostools.tasks.repeats import letters as letters
from ostools.tasks.repeats import words as words

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
