"""Measurements on a model: sensitivity, the path sum beside it, their comparison, and collapse."""

from ostools.measure.collapse import Collapse as Collapse
from ostools.measure.collapse import collapse as collapse
from ostools.measure.compare import Comparison as Comparison
from ostools.measure.compare import compare as compare
from ostools.measure.path_sum import PathSum as PathSum
from ostools.measure.path_sum import path_sum as path_sum
from ostools.measure.sensitivity import Sensitivity as Sensitivity
from ostools.measure.sensitivity import jacobian as jacobian
from ostools.measure.sensitivity import sensitivity as sensitivity

__all__ = [
    "Collapse",
    "Comparison",
    "PathSum",
    "Sensitivity",
    "collapse",
    "compare",
    "jacobian",
    "path_sum",
    "sensitivity",
]
