"""The paper's figures by number, its lemmas as checks, and the questions that it leaves open."""

from ostools.experiments.figure5 import Figure5 as Figure5
from ostools.experiments.figure5 import figure_5 as figure_5
from ostools.experiments.figure8 import Figure8 as Figure8
from ostools.experiments.figure8 import figure_8 as figure_8
from ostools.experiments.figure9 import Figure9 as Figure9
from ostools.experiments.figure9 import figure_9 as figure_9
from ostools.experiments.lab import Lab as Lab
from ostools.experiments.lab import lab as lab
from ostools.experiments.repeats import Repeats as Repeats
from ostools.experiments.repeats import repeats as repeats
from ostools.experiments.theory import TheoryChecks as TheoryChecks
from ostools.experiments.theory import theory as theory

__all__ = [
    "Figure5",
    "Figure8",
    "Figure9",
    "Lab",
    "Repeats",
    "TheoryChecks",
    "figure_5",
    "figure_8",
    "figure_9",
    "lab",
    "repeats",
    "theory",
]
