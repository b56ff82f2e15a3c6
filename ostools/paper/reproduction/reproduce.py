"""The paper's claims, judged on one model: parts are measured or resumed, and each claim has a
line.

The directory has for each part a record, and a Parquet file for each result. Files appear whole or
not at all, and a part's record last: what was cut off is measured again. A record holds the key of
what its numbers come from (model, arguments, versions): under another key the part is measured
again. After a change of the package's own source under one version give a new directory.

Cost: on the embedded model and two CPU cores less than ten minutes; stored parts cost a reading.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

import ostools as ost
from ostools.ground import InputError, Progress, TransformerBridge, part_of, refusal, tell
from ostools.hooks import HookError, active_edits
from ostools.measure import Hosted
from ostools.mitigations import MitigationError
from ostools.models.tokenizer_calls import fingerprint
from ostools.paper.behaviour import provenance_of
from ostools.paper.claims import answers, collapse, squashing, statements
from ostools.paper.claims.claim import PaperClaim, Reproduction, ResultsByPart
from ostools.paper.claims.parts import (
    Arguments,
    ClaimPart,
    Results,
    checked_arguments,
    options_of,
    parts_of,
)
from ostools.results import Result, load_result, save_table, write_atomically
from ostools.sweep.cells import code_version, digest
from ostools.sweep.store import UNREADABLE, OwnDirectory
from ostools.sweep.sweep_file import read_yaml

CLAIMS_FILE, PAGE_FILE = "claims.csv", "report.html"
CLAIMS: tuple[PaperClaim, ...] = (
    *answers.CLAIMS,
    *collapse.CLAIMS,
    *statements.SYNTHETIC,
    *collapse.INDUCTION,
    *squashing.CLAIMS,
    *statements.CLAIMS,
)
FIGURES = (2, 3, 4, 5, 6, 7, 8, 9)


def chosen_claims(figures: Iterable[int] | None = None) -> list[PaperClaim]:
    """All claims, or those of some figures. Raises `InputError` for a number that is no figure with
    a claim.
    """
    if figures is None:
        return list(CLAIMS)
    numbers = list(figures)
    if not numbers or any(type(number) is not int or number not in FIGURES for number in numbers):
        raise InputError(
            f"figures: expected some of {', '.join(map(str, FIGURES))} (Figure 1 is a drawing), "
            f"found {numbers}"
        )
    return [claim for claim in CLAIMS if set(claim.figures) & set(numbers)]


def judged(
    claims: Iterable[PaperClaim], results: ResultsByPart, refused: Mapping[str, str]
) -> pd.DataFrame:
    """The frame of `Reproduction`. `refused`: why a part was not measured."""
    verdicts = [(claim, claim.verdict(results, refused)) for claim in claims]
    return pd.DataFrame(
        {
            "claim": claim.id,
            "place": claim.place,
            "words": claim.words,
            "rule": claim.rule,
            "outcome": verdict.outcome,
            "measured": verdict.sentence,
            "parts": ", ".join(claim.needs),
            "figures": ", ".join(map(str, claim.figures)),
        }
        for claim, verdict in verdicts
    )


class Parts(OwnDirectory):
    """Reads and writes the directory of a reproduction: of each part a record, and a folder of its
    tables.
    """

    MARK, OF = CLAIMS_FILE, "`ostools reproduce`"

    def record_of(self, name: str) -> Path:
        """The record of a part; it is there once the part was measured, under any key."""
        return self.directory / f"{name}.json"

    def keep(self, name: str, key: str, results: Mapping[str, Result], seconds: float) -> None:
        """Store a part: its results, and after them the record by which they are found."""
        # Without the old record first: a run killed here would leave it to vouch for new numbers.
        self.record_of(name).unlink(missing_ok=True)
        (self.directory / name).mkdir(exist_ok=True)
        for file, result in results.items():
            result.save(self.directory / name / f"{file}.parquet")
        text = json.dumps({"key": key, "seconds": seconds, "results": list(results)}, indent=1)
        write_atomically(self.record_of(name), lambda part: part.write_text(text, "utf-8"))

    def stored(self, name: str, key: str) -> tuple[Results, float] | None:
        """The results of a part under this key, and the seconds that they took to measure; None
        where it has to be measured.
        """
        problem = "was measured with another model or tokenizer, other edits, arguments or versions"
        try:
            record = json.loads(self.record_of(name).read_bytes())
            if record["key"] == key:
                files = {
                    file: self.directory / name / f"{file}.parquet" for file in record["results"]
                }
                results = {file: load_result(path) for file, path in files.items()}
                return results, float(record["seconds"])
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            problem = f"what is stored cannot be read ({type(error).__name__})"
        self.say(f"{name}: {problem}; it is measured again")
        return None


@ost.measure.measurement()
def reproduce(
    model: TransformerBridge | Hosted,
    figures: Iterable[int] | int | None = None,
    *,
    out: str | Path,
    arguments: Mapping[str, Arguments] | None = None,
    recipe: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """Measure what the paper's claims need on `model`, judge each claim, and write DIR/report.html
    and DIR/claims.csv.

    Args:
        model: a loaded model, or the answers of one that runs elsewhere
            (`ostools.measure.read_answers`), to the questions of
            `ostools.paper.claims.parts.claim_questions`. Of such a model the claims about answers
            are judged.
        figures: numbers of figures (2 to 9). Only their claims are judged. None: all claims, those
            about lemmas and theorems too.
        out: the directory DIR, a new one or that of an earlier run. A stored part of the same model
            (its weights, tokenizer and active edits), arguments and code is not measured again.
        arguments: arguments of the parts, by part and name, where they differ from those of
            `ostools.paper.claims.parts.PARTS`. `read_recipe` reads them from a file.
        recipe: the file that they come from, for the report's command.
        progress: called as progress(done, total).
        say: called with one line for each part that is measured, and for what in the directory
            cannot be used.

    What cannot be measured on this model (a tokenizer that merges digits, a prompt longer than the
    context) leaves its claims "could not be tested", with that reason. Raises `InputError`, before
    anything is measured, for an unknown figure, part or argument, and for a directory that belongs
    to something else or cannot be written.
    """
    from ostools.paper.reproduction.page import command, render_reproduction

    numbers = None if figures is None else [figures] if isinstance(figures, int) else [*figures]
    claims, checked = chosen_claims(numbers), checked_arguments(arguments or {})
    parts, store, identity = parts_of(claims), Parts(Path(out), say), _identity(model)
    origin = provenance_of(
        model,
        measurement="reproduce",
        figures=numbers and sorted(set(numbers)),
        arguments={part.name: checked[part.name] for part in parts},
    )
    results: dict[str, Results] = {}
    seconds: dict[str, float] = {}
    refusals: dict[str, str] = {}
    start, total = 0, sum(100 * part.weight for part in parts)
    with store.locked():
        for part in parts:
            end = start + 100 * part.weight
            part_progress = part_of(progress, start, end, total)
            try:
                results[part.name], seconds[part.name] = _measured(
                    part, model, store, checked[part.name], identity, part_progress
                )
            except (InputError, HookError, MitigationError) as error:
                refusals[part.name] = str(error)
                say(f"{part.name}: {error}")
            tell(progress, start := end, total)
        frame = judged(claims, results, refusals)
        page = Path(out) / PAGE_FILE
        reproduction = Reproduction(frame, origin, results, refusals, seconds, page)
        save_table(frame, origin.as_dict(), Path(out) / CLAIMS_FILE)
        text = render_reproduction(reproduction, command(reproduction, str(out), recipe))
        write_atomically(page, lambda part: part.write_text(text, encoding="utf-8"))
    return reproduction


def _identity(model: TransformerBridge | Hosted) -> dict[str, Any]:
    """What the numbers of a model come from: weights, tokenizer and active edits; of answers made
    elsewhere what they say of their model.
    """
    described = dict(provenance_of(model).model)
    if isinstance(model, Hosted):
        return described
    tokenizer = None if model.tokenizer is None else digest(fingerprint(model.tokenizer))
    # What a hook without words does is not known: its parts are never found again.
    edits = [str(edit) if edit.what else uuid4().hex for edit in active_edits(model)]
    return {**described, "tokenizer": tokenizer, "edits": edits}


def _measured(
    part: ClaimPart,
    model: Any,
    store: Parts,
    arguments: Arguments,
    identity: Mapping[str, Any],
    progress: Progress | None,
) -> tuple[Results, float]:
    """A part's results and their seconds, taken from the directory, or measured and stored
    there.
    """
    options = options_of(arguments)
    described: Mapping[str, Any] = {} if part.memory is None else identity
    if isinstance(model, Hosted) and part.memory is not None:
        if part.questions is None:
            raise InputError("takes the inside of a model, and of this one there are answers alone")
        model = model.part(part.questions(options))
        described = {**described, **model.answer_by_id}
    key = digest(
        {
            "part": part.name,
            "model": {name: str(value) for name, value in described.items()},
            "arguments": arguments,
            "code": code_version(),
        }
    )
    if (stored := store.stored(part.name, key)) is None:
        store.say(f"measuring {part.name}")
        start = time.perf_counter()
        results = part.measure(model, options, progress)
        store.keep(part.name, key, results, time.perf_counter() - start)
        # What is judged is what is stored, now and when it is resumed.
        stored = store.stored(part.name, key)
    if stored is None:
        raise InputError(f"{part.name}: was measured, and could not be read back")
    return stored


# --- recipe files


class Recipe(BaseModel):
    """A recipe file. model, device, dtype: what is loaded, None where the file does not say. parts:
    the arguments of every part.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    parts: Annotated[
        dict[str, dict[str, Any]], AfterValidator(checked_arguments), Field(validate_default=True)
    ] = {}


def read_recipe(path: str | Path) -> Recipe:
    """The recipe of a YAML file. Raises `InputError` for what cannot be read, unknown keys, parts
    and arguments.
    """
    with refusal(f"{path} with the keys model, device, dtype and parts"):
        return Recipe.model_validate(read_yaml(Path(path)))
