"""The paper's prompts: `figure_5a()` to `figure_5d()` for collapse, `AppendixTask` for what a model answers."""

from ostools.tasks.appendix_c import NAMES as APPENDIX_NAMES
from ostools.tasks.appendix_c import AppendixTask as AppendixTask
from ostools.tasks.figure5 import FIGURE_5 as FIGURE_5
from ostools.tasks.figure5 import CollapseTask as CollapseTask
from ostools.tasks.figure5 import ItemsAs as ItemsAs
from ostools.tasks.figure5 import figure_5a as figure_5a
from ostools.tasks.figure5 import figure_5b as figure_5b
from ostools.tasks.figure5 import figure_5c as figure_5c
from ostools.tasks.figure5 import figure_5d as figure_5d
from ostools.tasks.figure5 import get as get
from ostools.tasks.pairs import Encoder as Encoder
from ostools.tasks.pairs import Pair as Pair
from ostools.tasks.pairs import theorem_pair as theorem_pair

__all__ = [
    "APPENDIX_NAMES",
    "FIGURE_5",
    "AppendixTask",
    "CollapseTask",
    "Encoder",
    "ItemsAs",
    "Pair",
    "figure_5a",
    "figure_5b",
    "figure_5c",
    "figure_5d",
    "get",
    "theorem_pair",
]
