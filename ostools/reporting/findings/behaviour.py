"""What behaviour shows, in sentences: what was asked, what the intervals are of, and what the numbers do not say."""

from __future__ import annotations

from ostools.measure.answers.behaviour import Behaviour
from ostools.measure.answers.behaviour_summary import NOTHING, PROMPTS
from ostools.results import Frame, frame_of


def behaviour_notes(result: Behaviour) -> list[str]:
    """What was asked, what the intervals are of, what could not be read, and where a mitigation did nothing."""
    frame: Frame = frame_of(result)
    summary: Frame = result.summary
    how = result.provenance.parameters
    asked = f"{len(frame)} answers to {int(summary['prompts'].sum())} prompts, "
    asked += "greedy" if how["temperature"] == 0 else f"drawn at temperature {how['temperature']:g}"
    asked += ", in the chat template" if how["chat"] else ""
    notes = [f"{asked}. {_intervals(summary)}"]
    if unparsable := int(summary["unparsable"].sum()):
        notes.append(f"{unparsable} could not be read: they are not right, and in no error.")
    if inactive := int((frame["status"] == "inactive").sum()):
        notes.append(f"Hollow: the mitigation changed nothing of the prompt or the logits ({inactive} answers).")
    return notes


def _intervals(summary: Frame) -> str:
    kinds = set(summary["interval_of"]) - {NOTHING}
    if not kinds:
        return "Nothing was drawn: there is no interval."
    return f"Intervals: Wilson's, 95%, over {'prompts' if PROMPTS in kinds else 'the samples behind the one prompt'}."


def behaviour_findings(result: Behaviour) -> list[str]:
    """The same for a terminal, with how many were right within the lengths of training and beyond.

    Those are the task's own: where a mitigation rewrote the text, of the task without it.
    """
    frame = frame_of(result)
    said = [_right(frame, "All lengths")]
    known = frame["within_training"].dropna()
    if not known.empty and known.any() and not known.all():
        within = frame["within_training"].fillna(False).astype(bool)
        of = " of the task without the mitigation" if result.provenance.parameters["rewritten"] else ""
        said += [_right(frame[within], f"Within the lengths of training{of}"), _right(frame[~within], "Beyond them")]
        said.append(
            f"Errors beyond say little about over-squashing: such lengths{of or ' of this task'} were never trained."
        )
    cut = int((frame["ended"] == "length").sum())
    if cut:
        limit = result.provenance.parameters["max_new_tokens"]
        said.append(f"{cut} answers were cut after {limit} tokens; none of them counts as right.")
    notes = [note.replace("Hollow: the", "The") for note in behaviour_notes(result)]
    return [*said, *notes]


def _right(rows: Frame, where: str) -> str:
    return f"{where}: {int(rows['correct'].sum())} of {len(rows)} answers are right."
