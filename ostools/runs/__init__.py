"""Sweeps: a file asks for many measurements. They are run cell by cell, resumed by the same command, and read as one table."""

from ostools.runs.corpus.corpus import corpus as corpus
from ostools.runs.corpus.result import Corpus as Corpus
from ostools.runs.corpus.result import CorpusCollapse as CorpusCollapse
from ostools.runs.corpus.result import read_corpus as read_corpus
from ostools.runs.executor import Executor as Executor
from ostools.runs.ray_cluster import RayCluster as RayCluster
from ostools.runs.reading import results as results
from ostools.runs.run import Outcome as Outcome
from ostools.runs.run import Plan as Plan
from ostools.runs.run import plan as plan
from ostools.runs.run import run as run
from ostools.runs.sweep_file import Sweep as Sweep
from ostools.runs.sweep_file import read_sweep as read_sweep
from ostools.runs.sweep_file import sweep_of as sweep_of

__all__ = [
    "Corpus",
    "CorpusCollapse",
    "Executor",
    "Outcome",
    "Plan",
    "RayCluster",
    "Sweep",
    "corpus",
    "plan",
    "read_corpus",
    "read_sweep",
    "results",
    "run",
    "sweep_of",
]
