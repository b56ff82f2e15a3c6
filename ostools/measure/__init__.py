"""Measurements on a model: sensitivity and what is read off it, the path sum, their comparison, collapse, attention and
answers."""

from ostools.measure.answers.behaviour import Behaviour, behaviour
from ostools.measure.answers.counting import Counting, counting
from ostools.measure.attention.attention import Attention, attention
from ostools.measure.attention.difference import AttentionDifference, attention_difference
from ostools.measure.attention.heads import HeadScores, head_scores
from ostools.measure.attention.variation import AttentionVariation, attention_variation
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.result import Collapse
from ostools.measure.contributions.contributions import Contributions, contributions
from ostools.measure.faithfulness.faithfulness import Faithfulness, faithfulness
from ostools.measure.fate.decodable import Decodable, decodable
from ostools.measure.fate.fate import Fate, fate
from ostools.measure.fate.readout import Readout, readout
from ostools.measure.hosted.behaviour import hosted_behaviour
from ostools.measure.hosted.endpoint import ask_endpoint
from ostools.measure.hosted.given import Hosted, read_answers
from ostools.measure.jacobian.sensitivity import Sensitivities, Sensitivity, jacobian, sensitivity
from ostools.measure.paths.path_sum import PathSum, PathSums, path_sum
from ostools.measure.profiles.change import Change
from ostools.measure.profiles.compare import Comparison, compare
from ostools.measure.profiles.nulls import Nulls, nulls
from ostools.measure.profiles.profile import Profile, profile
from ostools.measure.profiles.spectra import Spectra, spectra

__all__ = [
    "Attention",
    "AttentionDifference",
    "AttentionVariation",
    "Behaviour",
    "Change",
    "Collapse",
    "Comparison",
    "Contributions",
    "Counting",
    "Decodable",
    "Faithfulness",
    "Fate",
    "HeadScores",
    "Hosted",
    "Nulls",
    "PathSum",
    "PathSums",
    "Profile",
    "Readout",
    "Sensitivities",
    "Sensitivity",
    "Spectra",
    "ask_endpoint",
    "attention",
    "attention_difference",
    "attention_variation",
    "behaviour",
    "collapse",
    "compare",
    "contributions",
    "counting",
    "decodable",
    "faithfulness",
    "fate",
    "head_scores",
    "hosted_behaviour",
    "jacobian",
    "nulls",
    "path_sum",
    "profile",
    "read_answers",
    "readout",
    "sensitivity",
    "spectra",
]
