"""Measurements on a model: sensitivity and what is read off it, the path sum beside it, their comparison, and collapse."""

from ostools.measure.attention import Attention as Attention
from ostools.measure.attention import attention as attention
from ostools.measure.attention_difference import AttentionDifference as AttentionDifference
from ostools.measure.attention_difference import attention_difference as attention_difference
from ostools.measure.behaviour import Behaviour as Behaviour
from ostools.measure.behaviour import behaviour as behaviour
from ostools.measure.collapse import Collapse as Collapse
from ostools.measure.collapse import collapse as collapse
from ostools.measure.compare import Comparison as Comparison
from ostools.measure.compare import compare as compare
from ostools.measure.counting import Counting as Counting
from ostools.measure.counting import counting as counting
from ostools.measure.flow import Flow as Flow
from ostools.measure.flow import flow as flow
from ostools.measure.heads import HeadScores as HeadScores
from ostools.measure.heads import head_scores as head_scores
from ostools.measure.looseness import Looseness as Looseness
from ostools.measure.looseness import looseness as looseness
from ostools.measure.path_sum import PathSum as PathSum
from ostools.measure.path_sum import path_sum as path_sum
from ostools.measure.profiles import Profile as Profile
from ostools.measure.profiles import profile as profile
from ostools.measure.sensitivity import Sensitivity as Sensitivity
from ostools.measure.sensitivity import jacobian as jacobian
from ostools.measure.sensitivity import sensitivity as sensitivity
from ostools.measure.spectra import Spectra as Spectra
from ostools.measure.spectra import spectra as spectra

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
