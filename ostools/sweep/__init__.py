"""Sweeps: a file asks for many measurements. They are run cell by cell, resumed by the same command, and read as one table."""

from ostools.sweep.corpus.corpus import corpus as corpus
from ostools.sweep.corpus.result import Corpus as Corpus
from ostools.sweep.corpus.result import CorpusCollapse as CorpusCollapse
from ostools.sweep.corpus.result import read_corpus as read_corpus
from ostools.sweep.executor import Executor as Executor
from ostools.sweep.ray_cluster import RayCluster as RayCluster
from ostools.sweep.reading import results as results
from ostools.sweep.run import Outcome as Outcome
from ostools.sweep.run import Plan as Plan
from ostools.sweep.run import plan as plan
from ostools.sweep.run import run as run
from ostools.sweep.sweep_file import Sweep as Sweep
from ostools.sweep.sweep_file import read_sweep as read_sweep
from ostools.sweep.sweep_file import sweep_of as sweep_of

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
