"""Sweeps: a file asks for many measurements. They are run cell by cell, resumed by the same
command, and read as one table.
"""

from ostools.sweep.executor import Executor, Outcome, SweepPlan, plan, run
from ostools.sweep.ray_cluster import RayCluster
from ostools.sweep.reading import over_texts, results
from ostools.sweep.sweep_file import Sweep, read_sweep, sweep_of

__all__ = [
    "Executor",
    "Outcome",
    "RayCluster",
    "Sweep",
    "SweepPlan",
    "over_texts",
    "plan",
    "read_sweep",
    "results",
    "run",
    "sweep_of",
]
