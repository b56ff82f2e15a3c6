"""Measurements on a model: sensitivity and what is read off it, the path sum, their comparison,
collapse, attention and answers."""

from ostools.measure.ablation.ablation import Ablation, ablation
from ostools.measure.answers.evaluate import evaluate
from ostools.measure.answers.result import AnswerDifference, Evaluation
from ostools.measure.attention.attention import (
    Attention,
    AttentionBaselines,
    attention,
    attention_baselines,
)
from ostools.measure.attention.heads import HeadScores, head_scores
from ostools.measure.bounds.bounds import Bounds, bounds
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.homogenization import TokenHomogenization, token_homogenization
from ostools.measure.collapse.result import Collapse, reference_at_y
from ostools.measure.collapse.variation import AttentionVariation, attention_variation
from ostools.measure.collapse.verdicts import Reading
from ostools.measure.faithfulness.faithfulness import Faithfulness, faithfulness
from ostools.measure.faithfulness.linear_range import LinearRange, linear_range
from ostools.measure.hosted.answer_file import Hosted, hosted_evaluation, read_answers
from ostools.measure.hosted.endpoint import ask_endpoint
from ostools.measure.jacobian.attribution import Attribution, attribution
from ostools.measure.jacobian.distance import InfluenceByDistance, influence_by_distance
from ostools.measure.jacobian.hops import Hops, hops
from ostools.measure.jacobian.sensitivity import Sensitivities, Sensitivity, jacobian, sensitivity
from ostools.measure.measurement import RECORDS, measurement
from ostools.measure.memory import bytes_of
from ostools.measure.patching.patching import Patching, patch
from ostools.measure.probes.failure_stage import FailureStage, failure_stage
from ostools.measure.probes.probe import Decodability, probe
from ostools.measure.probes.wrong_answers import explain_wrong_answers
from ostools.measure.profiles.change import Change
from ostools.measure.profiles.compare import Comparison, compare
from ostools.measure.profiles.position_effect import PositionEffect, position_effect
from ostools.measure.profiles.profile import Profile, profile
from ostools.measure.prompts import of_text
from ostools.measure.study.study import Study, study
from ostools.measure.task_prompt import TaskPrompt, carrier_positions, item_positions, render_prompt
from ostools.measure.unloaded import Unloaded

__all__ = [
    "RECORDS",
    "Ablation",
    "AnswerDifference",
    "Attention",
    "AttentionBaselines",
    "AttentionVariation",
    "Attribution",
    "Bounds",
    "Change",
    "Collapse",
    "Comparison",
    "Decodability",
    "Evaluation",
    "FailureStage",
    "Faithfulness",
    "HeadScores",
    "Hops",
    "Hosted",
    "InfluenceByDistance",
    "LinearRange",
    "Patching",
    "PositionEffect",
    "Profile",
    "Reading",
    "Sensitivities",
    "Sensitivity",
    "Study",
    "TaskPrompt",
    "TokenHomogenization",
    "Unloaded",
    "ablation",
    "ask_endpoint",
    "attention",
    "attention_baselines",
    "attention_variation",
    "attribution",
    "bounds",
    "bytes_of",
    "carrier_positions",
    "collapse",
    "compare",
    "evaluate",
    "explain_wrong_answers",
    "failure_stage",
    "faithfulness",
    "head_scores",
    "hops",
    "hosted_evaluation",
    "influence_by_distance",
    "item_positions",
    "jacobian",
    "linear_range",
    "measurement",
    "of_text",
    "patch",
    "position_effect",
    "probe",
    "profile",
    "read_answers",
    "reference_at_y",
    "render_prompt",
    "sensitivity",
    "study",
    "token_homogenization",
]
