"""Over-squashing by position, on natural text, with the identity of the tokens taken out.

In one prompt, position and content are confounded: the paper's copy prompt has a question at its
end and equal digits in its middle. Here every passage of n tokens is measured in three rotations,
by a third of its length each. Every token then stands once in each third. The difference of two
thirds, averaged over the rotations, holds no token's own size: only position is left.

The token whose y is read is the same in all three rotations (the passage's next token), and so is
what stands before the text. A passage is one sample. Cost: three sensitivities a passage, and as
many of an untrained model where that stands beside.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Int

from ostools.ground import (
    Count,
    InputError,
    Method,
    Progress,
    Seed,
    TransformerBridge,
    with_progress,
)
from ostools.measure import sensitivity
from ostools.measure.jacobian.norms import COTANGENTS
from ostools.measure.measurement import measurement
from ostools.measure.passes.contexts import require_no_edits
from ostools.models import Prompt, untrained_model
from ostools.models.tokens import frame as special_tokens
from ostools.models.tokens import text_ids
from ostools.results import Chart, Frame, Provenance, Result, frame_of
from ostools.theory.profiles import ProfileShape, ends_over_texts

KINDS = ("facts", "code", "digits", "story")
NATURAL = ("facts", "code", "story")
"""The kinds whose tokens differ from place to place: there, position is not confounded with
repetition.
"""
THIRDS = ("start", "middle", "end")
MODEL, UNTRAINED, SHUFFLED = "model", "untrained", "shuffled"
FEWEST_PASSAGES = 3
"""A standard error of fewer passages says nothing."""


@dataclass(frozen=True)
class Passage:
    """A text with its kind, one of `KINDS`."""

    kind: str
    text: str


PASSAGES = tuple(
    Passage(**json.loads(line))
    for line in Path(__file__).with_name("passages.jsonl").read_text("utf-8").splitlines()
)
"""Five passages of each kind, in the order of `KINDS`, each of at least 128 tokens under the
tokenizers of Gemma and SmolLM2. They were written for this project, so that no model was trained on
them."""


@dataclass(frozen=True, eq=False)
class PositionEffect(Result):
    """Sensitivity by position, over passages that were rotated through the prompt.

    `frame`, one row a token in a rotation of a passage: source ("model"; "untrained": the same
    architecture before training; "shuffled": the model on the passages' tokens in random order),
    passage (its number), passage_kind, rotation (0, 1, 2), third, position (in the text, from 0),
    text_position (where the token stands in the passage as it was written, or shuffled), token_id,
    token, kind ("measured" or "estimated"), norm (Frobenius norm of d y / d v_i^(0)).
    """

    key: ClassVar = ("source", "passage", "rotation", "position")

    @property
    def contrasts(self) -> Frame:
        """One row a source, and one for the difference of both: `start` and `end`, how far that
        third stands above the middle one (decades: differences of mean log10 norms), with a 95%
        interval over passages (Student's t) and a p-value; the number of passages; and the shape,
        which is named only where the intervals exclude 0.
        """
        logs = frame_of(self).assign(log=np.log10(self.frame["norm"].to_numpy(dtype=float)))
        thirds = logs.pivot_table(
            index=["source", "passage"], columns="third", values="log", sort=False
        )
        ends = thirds[["start", "end"]].sub(thirds["middle"], axis=0)
        samples = {
            str(source): group.droplevel("source")
            for source, group in ends.groupby("source", sort=False)
        }
        if UNTRAINED in samples:
            difference = samples[MODEL] - samples[UNTRAINED]
            if difference.isna().any(axis=None):
                raise InputError(
                    "position_effect: expected the same passages of the model and the untrained "
                    f"one, found {sorted(difference.index[difference.isna().any(axis=1)])} of one "
                    "alone: give the whole result"
                )
            samples["model minus untrained"] = difference
        rows = []
        for source, by_passage in samples.items():
            tested = ends_over_texts(by_passage.to_numpy(dtype=float))
            row: dict[str, object] = {"source": source, "passages": len(by_passage)}
            for name, end in (("start", tested.start), ("end", tested.end)):
                row |= {name: end.value, f"{name}_low": end.low, f"{name}_high": end.high}
                row |= {f"{name}_p": end.p}
            rows.append(row | {"shape": tested.verdict})
        return pd.DataFrame(rows)

    @property
    def verdict(self) -> ProfileShape:
        """The shape of the model's own profile."""
        contrasts = self.contrasts
        return contrasts.loc[contrasts["source"] == MODEL, "shape"].iloc[0]

    def chart(self) -> Chart:
        from ostools.reporting.charts.profile import position_chart

        return position_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import position_findings

        return position_findings(self)


@measurement()
def position_effect(
    model: TransformerBridge,
    *,
    texts: Sequence[str] | None = None,
    passages: Count | None = None,
    tokens: int = 48,
    method: Method = "auto",
    cotangents: int = COTANGENTS,
    untrained: bool = True,
    shuffled: bool = False,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> PositionEffect:
    """Measure ||d y / d v_i^(0)||_F at every token of passages in three rotations, and test thirds
    against each other.

    Args:
        texts: passages of your own, each of more than `tokens` tokens. None: the natural ones of
            `PASSAGES` (facts, code, story), which were written for this project.
        passages: how many of them, spread over the kinds; None: all.
        tokens: tokens of each passage that are rotated; a multiple of three.
        method, cotangents, seed: as in `ost.sensitivity`.
        untrained: whether `ost.models.untrained_model(model, "initialised")` is measured on the
            same prompts. What it shows too was not learnt. It needs the memory of a second model.
        shuffled: whether the model is measured on the passages' tokens in random order too, a
            control without syntax.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for fewer than three passages, a passage that is too short, a length that is
    no multiple of three, an active edit together with `untrained`, and norms of zero (a token out
    of every window's reach has no logarithm).
    """
    passage_list = _checked_passages(texts, passages)
    if untrained:
        require_no_edits("position_effect", model, "an untrained model would not have it")
    rotations = _rotated(model, passage_list, tokens)
    options: dict[str, Any] = {"method": method, "cotangents": cotangents, "seed": seed}
    provenance = Provenance.collect(
        model,
        passages=len(passage_list),
        own_texts=texts is not None,
        tokens=tokens,
        linearisation="full",
        untrained=untrained,
        shuffled=shuffled,
        **options,
    )
    subjects = {MODEL: (model, rotations)}
    if untrained:  # first: it may not fit into memory
        subjects[UNTRAINED] = (untrained_model(model, "initialised", seed=seed), rotations)
    if shuffled:
        order = np.random.default_rng(seed).permutation(tokens)
        subjects[SHUFFLED] = (model, _rotated(model, passage_list, tokens, order))
    tables = []
    for (source, (subject, prompts)), part in with_progress(subjects.items(), progress):
        options["progress"] = part or False
        table = _norms(subject, prompts, linearisations=["full"], **options)
        table.insert(0, "source", source)
        tables.append(table)
    return PositionEffect(pd.concat(tables, ignore_index=True), provenance)


def _checked_passages(texts: Sequence[str] | None, count: int | None) -> list[Passage]:
    if texts is None:
        available = [passage for passage in PASSAGES if passage.kind in NATURAL]
    else:
        available = [Passage("own", text) for text in texts]
    passage_count = len(available) if count is None else count
    if not FEWEST_PASSAGES <= passage_count <= len(available):
        raise InputError(
            f"position_effect: expected {FEWEST_PASSAGES} passages or more, each a sample of the "
            f"test, and no more than the {len(available)} there are, found {passage_count}"
        )
    # The kinds in turn, so that few passages are of every kind.
    kinds = [passage.kind for passage in available]
    in_turn = sorted(range(len(available)), key=lambda place: kinds[:place].count(kinds[place]))
    return [available[place] for place in sorted(in_turn[:passage_count])]


def _rotated(
    model: TransformerBridge,
    passages: Sequence[Passage],
    tokens: int,
    order: Int[np.ndarray, " pos"] | None = None,
) -> list[tuple[Prompt, dict[str, object]]]:
    """Three prompts a passage, its tokens in this order, each with the columns that its rows have
    before any is measured.

    A prompt: special tokens, the rotated text, and the passage's next token, whose y is read.
    """
    if model.tokenizer is None:
        raise InputError(
            "position_effect: expected a model with a tokenizer, found none: passages are texts"
        )
    before, _ = special_tokens(model.tokenizer)
    if tokens < 6 or tokens % 3:
        raise InputError(
            "tokens: expected a multiple of three from 6 on (each token stands once in every "
            f"third), found {tokens}"
        )
    rotations, places = [], np.arange(tokens)
    for number, passage in enumerate(passages):
        ids = text_ids(model.tokenizer, passage.text)
        if len(ids) <= tokens:
            raise InputError(
                f"position_effect: expected more than {tokens} tokens in passage {number}, found "
                f"{len(ids)}: ask for "
                "fewer tokens"
            )
        if order is not None:
            ids[:tokens] = [ids[place] for place in order]
        for turn in range(3):
            shift = turn * tokens // 3
            text = [*ids[shift:tokens], *ids[:shift], ids[tokens]]
            columns = {
                "passage": number,
                "passage_kind": passage.kind,
                "rotation": turn,
                "third": np.repeat(THIRDS, tokens // 3),
                "position": places,
                "text_position": (places + shift) % tokens,
            }
            rotations.append((Prompt.from_ids(model, [*before, *text]), columns))
    return rotations


def _norms(
    model: TransformerBridge, rotations: Sequence[tuple[Prompt, Mapping[str, Any]]], **options: Any
) -> Frame:
    """Norms of every token of the rotated texts; `options`: those of `sensitivity`."""
    measured = sensitivity(model, [prompt for prompt, _ in rotations], **options)
    tables = []
    for (_, columns), result in zip(rotations, measured.results, strict=True):
        rows: Frame = result.frame.iloc[-1 - len(columns["position"]) : -1]
        values = {
            "token_id": rows["token_id"].to_numpy(),
            "token": rows["token"].to_numpy(),
            "kind": np.where(rows["method"] == "exact", "measured", "estimated"),
            "norm": rows["frobenius_norm"].to_numpy(dtype=float),
        }
        tables.append(pd.DataFrame({**columns, **values}))
    table: Frame = pd.concat(tables, ignore_index=True)
    if (zeros := int((table["norm"] == 0).sum())) > 0:
        raise InputError(
            f"position_effect: expected norms above zero, found {zeros} of {len(table)} that are "
            "zero: these tokens are out of "
            "every window's reach; ask for fewer tokens"
        )
    return table
