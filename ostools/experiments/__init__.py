"""The paper's figures by number, and the questions that it leaves open."""

from ostools import hooks  # noqa: F401 -- first: it keeps transformers' log level, which TransformerLens' import changes
from ostools.experiments.ablation.ablation import Ablation, ablation
from ostools.experiments.ablation.questions import AnsweredPrompt
from ostools.experiments.chain_of_thought import ChainOfThought, chain_of_thought
from ostools.experiments.figures.answering import Figure2, figure_2
from ostools.experiments.figures.counting import Figure3, Figure4, figure_3, figure_4, figure_4_of, figure_prompts
from ostools.experiments.figures.figure5 import Figure5, figure_5
from ostools.experiments.figures.synthetic import Figure8, Figure9, figure_8, figure_9
from ostools.experiments.position import PositionEffect, position_effect
from ostools.experiments.reproduce.claims import Reproduction
from ostools.experiments.retrieval import Retrieval, retrieval
from ostools.experiments.study.study import Study, study
from ostools.experiments.study.windows import WindowStudy, windows

__all__ = [
    "Ablation",
    "AnsweredPrompt",
    "ChainOfThought",
    "Figure2",
    "Figure3",
    "Figure4",
    "Figure5",
    "Figure8",
    "Figure9",
    "PositionEffect",
    "Reproduction",
    "Retrieval",
    "Study",
    "WindowStudy",
    "ablation",
    "chain_of_thought",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_4_of",
    "figure_5",
    "figure_8",
    "figure_9",
    "figure_prompts",
    "position_effect",
    "retrieval",
    "study",
    "windows",
]
