"""The paper's figures by number, and the questions that it leaves open."""

from ostools.paper.behaviour import (
    Figure2,
    Figure3,
    Figure4,
    figure_2,
    figure_3,
    figure_4,
    figure_4_of,
    figure_prompts,
)
from ostools.paper.claims.claim import Reproduction
from ostools.paper.figure5 import Figure5, figure_5
from ostools.paper.reproduction.reproduce import reproduce
from ostools.paper.retrieval import Retrieval, retrieval
from ostools.paper.synthetic import Figure8, Figure9, figure_8, figure_9

__all__ = [
    "Figure2",
    "Figure3",
    "Figure4",
    "Figure5",
    "Figure8",
    "Figure9",
    "Reproduction",
    "Retrieval",
    "figure_2",
    "figure_3",
    "figure_4",
    "figure_4_of",
    "figure_5",
    "figure_8",
    "figure_9",
    "figure_prompts",
    "reproduce",
    "retrieval",
]
