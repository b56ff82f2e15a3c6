"""How much a report measures: a verdict on answers rests on enough questions, and what does not fit
is left out and said.
"""

from __future__ import annotations

import pytest

from ostools.reporting.sections import extent
from ostools.reporting.sections.extent import FULL, LEAST, REDUCED, STUDY_LENGTHS, Extent


@pytest.mark.parametrize("chosen", [FULL, REDUCED, LEAST])
def test_a_verdict_on_answers_rests_on_24_questions(chosen: Extent) -> None:
    assert len(chosen.answer_lengths) * len(chosen.answer_seeds) >= 24
    assert len(STUDY_LENGTHS) * len(chosen.study_seeds) >= 24
    assert len(extent.FAILURE_STAGE_LENGTHS) * len(chosen.stage_seeds) >= 24
