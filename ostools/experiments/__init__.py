"""The paper's figures by number, its lemmas as checks, and the questions that it leaves open."""

from ostools.experiments.figure8 import Figure8 as Figure8
from ostools.experiments.figure8 import figure_8 as figure_8
from ostools.experiments.figure9 import Figure9 as Figure9
from ostools.experiments.figure9 import figure_9 as figure_9
from ostools.experiments.repeats import Repeats as Repeats
from ostools.experiments.repeats import repeats as repeats
from ostools.experiments.theory import TheoryChecks as TheoryChecks
from ostools.experiments.theory import theory as theory

__all__ = ["Figure8", "Figure9", "Repeats", "TheoryChecks", "figure_8", "figure_9", "repeats", "theory"]
