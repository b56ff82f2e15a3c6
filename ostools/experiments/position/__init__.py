"""Whether the place of a token in the prompt decides how much it counts, apart from which token it is."""

from ostools.experiments.position.passages import KINDS as KINDS
from ostools.experiments.position.passages import NATURAL as NATURAL
from ostools.experiments.position.passages import PASSAGES as PASSAGES
from ostools.experiments.position.passages import Passage as Passage
from ostools.experiments.position.position_effect import PositionEffect as PositionEffect
from ostools.experiments.position.position_effect import position_effect as position_effect
