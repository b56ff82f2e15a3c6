"""Measurements on a model: sensitivity and what is read off it, the path sum beside it, their comparison, and collapse."""

from ostools.measure.answers.behaviour import Behaviour as Behaviour
from ostools.measure.answers.behaviour import behaviour as behaviour
from ostools.measure.answers.counting import Counting as Counting
from ostools.measure.answers.counting import counting as counting
from ostools.measure.attention.attention import Attention as Attention
from ostools.measure.attention.attention import attention as attention
from ostools.measure.attention.difference import AttentionDifference as AttentionDifference
from ostools.measure.attention.difference import attention_difference as attention_difference
from ostools.measure.attention.heads import HeadScores as HeadScores
from ostools.measure.attention.heads import head_scores as head_scores
from ostools.measure.collapse.collapse import Collapse as Collapse
from ostools.measure.collapse.collapse import collapse as collapse
from ostools.measure.jacobian.sensitivity import Sensitivity as Sensitivity
from ostools.measure.jacobian.sensitivity import jacobian as jacobian
from ostools.measure.jacobian.sensitivity import sensitivity as sensitivity
from ostools.measure.paths.flow import Flow as Flow
from ostools.measure.paths.flow import flow as flow
from ostools.measure.paths.path_sum import PathSum as PathSum
from ostools.measure.paths.path_sum import path_sum as path_sum
from ostools.measure.profiles.compare import Comparison as Comparison
from ostools.measure.profiles.compare import compare as compare
from ostools.measure.profiles.looseness import Looseness as Looseness
from ostools.measure.profiles.looseness import looseness as looseness
from ostools.measure.profiles.profile import Profile as Profile
from ostools.measure.profiles.profile import profile as profile
from ostools.measure.profiles.spectra import Spectra as Spectra
from ostools.measure.profiles.spectra import spectra as spectra

__all__ = [
    "Attention",
    "AttentionDifference",
    "Behaviour",
    "Collapse",
    "Comparison",
    "Counting",
    "Flow",
    "HeadScores",
    "Looseness",
    "PathSum",
    "Profile",
    "Sensitivity",
    "Spectra",
    "attention",
    "attention_difference",
    "behaviour",
    "collapse",
    "compare",
    "counting",
    "flow",
    "head_scores",
    "jacobian",
    "looseness",
    "path_sum",
    "profile",
    "sensitivity",
    "spectra",
]
