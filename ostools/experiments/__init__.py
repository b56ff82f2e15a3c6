"""The paper's figures by number, its lemmas as checks, and the questions that it leaves open."""

from ostools.experiments.ablation.ablation import Ablation as Ablation
from ostools.experiments.ablation.ablation import ablation as ablation
from ostools.experiments.figures.figure2 import Figure2 as Figure2
from ostools.experiments.figures.figure2 import figure_2 as figure_2
from ostools.experiments.figures.figure3 import Figure3 as Figure3
from ostools.experiments.figures.figure3 import figure_3 as figure_3
from ostools.experiments.figures.figure4 import Figure4 as Figure4
from ostools.experiments.figures.figure4 import figure_4 as figure_4
from ostools.experiments.figures.figure4 import figure_4_of as figure_4_of
from ostools.experiments.figures.figure5 import Figure5 as Figure5
from ostools.experiments.figures.figure5 import figure_5 as figure_5
from ostools.experiments.figures.figure8 import Figure8 as Figure8
from ostools.experiments.figures.figure8 import figure_8 as figure_8
from ostools.experiments.figures.figure9 import Figure9 as Figure9
from ostools.experiments.figures.figure9 import figure_9 as figure_9
from ostools.experiments.lab.lab import Lab as Lab
from ostools.experiments.lab.lab import lab as lab
from ostools.experiments.lemmas.theory import TheoryChecks as TheoryChecks
from ostools.experiments.lemmas.theory import theory as theory
from ostools.experiments.repeats import Repeats as Repeats
from ostools.experiments.repeats import repeats as repeats
from ostools.experiments.retrieval import Retrieval as Retrieval
from ostools.experiments.retrieval import retrieval as retrieval
from ostools.experiments.study.study import Study as Study
from ostools.experiments.study.study import study as study
from ostools.experiments.study.windows import WindowStudy as WindowStudy
from ostools.experiments.study.windows import windows as windows

__all__ = [
    "Ablation",
    "Figure2",
    "Figure3",
    "Figure4",
    "Figure5",
    "Figure8",
    "Figure9",
    "Lab",
    "Repeats",
    "Retrieval",
    "Study",
    "TheoryChecks",
    "WindowStudy",
    "ablation",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_4_of",
    "figure_5",
    "figure_8",
    "figure_9",
    "lab",
    "repeats",
    "retrieval",
    "study",
    "theory",
    "windows",
]
