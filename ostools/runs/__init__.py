"""Sweeps: a file that asks for many measurements, run cell by cell, resumed by the same command, read as one table."""

from ostools.reporting.run_report import report as report
from ostools.runs.executor import Executor as Executor
from ostools.runs.ray_cluster import RayCluster as RayCluster
from ostools.runs.reading import results as results
from ostools.runs.run import Outcome as Outcome
from ostools.runs.run import Plan as Plan
from ostools.runs.run import plan as plan
from ostools.runs.run import run as run
from ostools.runs.sweep import Sweep as Sweep
from ostools.runs.sweep import read_sweep as read_sweep
from ostools.runs.sweep import sweep_of as sweep_of

__all__ = [
    "Executor",
    "Outcome",
    "Plan",
    "RayCluster",
    "Sweep",
    "plan",
    "read_sweep",
    "report",
    "results",
    "run",
    "sweep_of",
]
