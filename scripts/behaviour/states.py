"""States of the questions that `scripts.behaviour` asks: y where they are read, the distance of n
and n + 1, rounding, probes.

All prompts of a cell go through one packed pass in bfloat16, and some of them through one in
float32 with the same weights (`measure.passes.last_tokens`). Behind the begun answer line stand the
right answer and the one that was given, token by token: whether a precision would write them, and
how likely the right one is, needs no generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.measure.answers.probability import line_ends
from ostools.measure.passes.batches import batching_of
from ostools.measure.passes.last_tokens import Unembedding, last_rows, prefix_tree
from ostools.measure.passes.precisions import Precision
from ostools.measure.position import ANSWER, POSITIONS, read_at, split_line
from ostools.measure.probes.scores import LENGTH, Place, of_length, said_by_probes, splits
from ostools.measure.prompts import agreeing
from ostools.measure.task_prompt import render_prompt
from ostools.models.tokenizer_calls import token_text
from ostools.tasks import Task
from scripts.behaviour.store import answers, store

BFLOAT16, FLOAT32 = "bfloat16", "float32"
PARTING = "parting"
"""Of a pair, the token after which their right answers part: of 11 and 12 the written 1, of 9 and
10 the same as "answer".
"""
PLACES = (ANSWER, PARTING, "prompt-end", "last-item")
CONTROLS = ("none", "shuffled")
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """One question up to each position, the tokens of its right answer, and the number that was
    given, with its tokens.
    """

    length: int
    seed: int
    key: str
    ids: Mapping[str, Ids]
    right: Ids
    given: Ids | None = None
    said: str | None = None

    @classmethod
    def of(
        cls, model: TransformerBridge, form: Task, length: int, seed: int, given: str | None
    ) -> Line:
        prompt = render_prompt(model, form, length, seed=seed)
        ids = {position: read_at(model, prompt, position).ids for position in POSITIONS}
        begun, right = split_line(model, prompt)
        line = cls(length, seed, prompt.key, ids, right)
        if given is None:
            return line
        begun_so, answer = split_line(model, replace(prompt, line=form.answer_line(given)))
        return replace(line, given=answer, said=given) if begun_so == begun else line

    @property
    def forced(self) -> list[Ids]:
        """The prompts after which each token of the right and of the given answer, and its end, is
        predicted.
        """
        answers = (self.right, self.given or ())
        return [self.ids[ANSWER] + answer[:k] for answer in answers for k in range(len(answer) + 1)]


@dataclass(frozen=True)
class Read:
    """y of every prompt of a cell in one precision, and the logits behind it."""

    model: TransformerBridge
    y: Tensor
    row: Mapping[Ids, int]

    @classmethod
    def by(cls, model: TransformerBridge, dtype: str, lines: Iterable[Line]) -> Read:
        distinct = list(
            dict.fromkeys(ids for line in lines for ids in (*line.ids.values(), *line.forced))
        )
        work, tree = Precision.of_name(dtype).prepared(model), prefix_tree(distinct)
        y = last_rows(work, distinct, tree, batching_of(work, is_chain=tree.is_chain)).y
        return cls(work, y, {ids: index for index, ids in enumerate(distinct)})

    def at(self, ids: Ids) -> Tensor:
        return self.y[self.row[ids]].float()

    def logits(self, ids: Sequence[Ids]) -> Tensor:
        return Unembedding.of(self.model)(self.y[[self.row[each] for each in ids]]).float()

    def writes(self, start: Ids, answer: Ids, ends: Tensor) -> tuple[bool, float]:
        """Whether the likeliest tokens after `start` are this answer and an end; and its log
        probability, with an end.
        """
        logits = self.logits([start + answer[:k] for k in range(len(answer) + 1)])
        top, log_p = logits.argmax(-1), torch.log_softmax(logits, dim=-1)
        wanted = torch.tensor(answer)
        same = bool((top[:-1] == wanted).all()) and int(top[-1]) in set(ends.tolist())
        tokens = log_p[:-1].gather(1, wanted[:, None]).sum()
        return same, float(tokens + torch.logsumexp(log_p[-1, ends], dim=0))


def measure(
    model: TransformerBridge,
    *,
    name: str,
    directory: Path,
    asked: Sequence[str],
    exact: Sequence[int] = (),
    exact_seeds: Iterable[int] = (0,),
) -> None:
    """A row a question: of those asked in the cells `asked`, and of the lengths and seeds whose
    pairs are measured exactly.

    Columns beside those of `row_of`: distance, noise and norm at each of `PLACES`, of n and n + 1
    items; with `said_` before the place of n items and as many as the model said, where nothing is
    drawn and both are measured.
    """
    form, lines, given = lines_of(model, asked, exact, exact_seeds)
    exactly = {(n + step, seed) for n in exact for seed in exact_seeds for step in (0, 1)}
    read = {BFLOAT16: Read.by(model, BFLOAT16, lines.values())}
    if exactly:
        read[FLOAT32] = Read.by(model, FLOAT32, [lines[key] for key in sorted(exactly)])
    ends = torch.tensor(sorted(line_ends(model)))
    rows = []
    for key, line in lines.items():
        by = {dtype: each for dtype, each in read.items() if dtype == BFLOAT16 or key in exactly}
        after = lines.get((line.length + 1, line.seed))
        rows.append(
            row_of(model, line, given.get(key), by, ends)
            | {"next_key": None if after is None else int(after.key)}
        )
    frame = pd.DataFrame(rows)
    following = {(n, seed): (n + 1, seed) for n in exact for seed in exact_seeds}
    said = (
        {} if form.random else {(n, 0): (int(line.said or n), 0) for (n, _), line in lines.items()}
    )
    said = {key: other for key, other in said.items() if other != key and {key, other} <= exactly}
    for place in PLACES:
        frame = frame.join(
            pairs(lines, following, read, place).add_suffix(f"_{place}"), on=["length", "seed"]
        )
        frame = frame.join(
            pairs(lines, said, read, place).add_suffix(f"_said_{place}"), on=["length", "seed"]
        )
    keep(directory, name, [line for key, line in lines.items() if key in given], read)
    store(name, frame)


def lines_of(
    model: TransformerBridge, asked: Sequence[str], exact: Iterable[int], exact_seeds: Iterable[int]
) -> tuple[Task, dict[tuple[int, int], Line], dict[tuple[int, int], Any]]:
    """The task, the questions by length and seed, and the stored answers to those that were asked."""
    given: dict[tuple[int, int], Any] = {}
    form: Task | None = None
    for cell in asked:
        frame: Any = answers(cell).frame
        form = tasks.task(str(frame["task"].iloc[0]))
        given |= {(int(row["length"]), int(row["seed"])): row for row in frame.to_dict("records")}
    assert form is not None
    keys = {*given, *((n + step, seed) for n in exact for seed in exact_seeds for step in (0, 1))}
    return (
        form,
        {key: Line.of(model, form, *key, number_of(given.get(key))) for key in sorted(keys)},
        given,
    )


def number_of(row: Mapping[str, Any] | None) -> str | None:
    return None if row is None or pd.isna(row["number"]) else str(int(row["number"]))


def row_of(
    model: TransformerBridge,
    line: Line,
    given: Mapping[str, Any] | None,
    read: Mapping[str, Read],
    ends: Tensor,
) -> dict[str, Any]:
    """Columns: length, seed, key; asked, correct, number and `form` (whether it is the asked line
    and nothing else); for each dtype `right_*` and `given_*` (would it write that answer),
    `log_p_*` (of the right one), and at each position the next token."""
    row: dict[str, Any] = {
        "length": line.length,
        "seed": line.seed,
        "key": int(line.key),
        "asked": given is not None,
    }
    row |= {"correct": None, "number": None, "form": None}
    if given is not None:
        row |= {"correct": bool(given["correct"]), "number": given["number"]}
        row["form"] = (
            line.given is not None and str(given["text"]).strip() == str(given["answer"]).strip()
        )
    for dtype, each in read.items():
        row[f"right_{dtype}"], row[f"log_p_{dtype}"] = each.writes(
            line.ids[ANSWER], line.right, ends
        )
        if line.given is not None:
            row[f"given_{dtype}"] = each.writes(line.ids[ANSWER], line.given, ends)[0]
        top = each.logits([line.ids[position] for position in POSITIONS]).argmax(-1).tolist()
        for position, token in zip(POSITIONS, top, strict=True):
            row[f"next_{position}_{dtype}"] = token_text(model.tokenizer, token)
    return row


def pairs(
    lines: Mapping[tuple[int, int], Line],
    others: Mapping[tuple[int, int], tuple[int, int]],
    read: Mapping[str, Read],
    place: str,
) -> pd.DataFrame:
    """By length and seed how far a question is from another at a place in float32, and what
    bfloat16 did to the difference.
    """
    rows = []
    for key, other in others.items():
        pair = [lines[key], lines[other]]
        common = pair[0].right[: agreeing(pair[0].right, pair[1].right)] if place == PARTING else ()
        here, there = (line.ids[ANSWER if place == PARTING else place] + common for line in pair)
        exact, rounded = (
            read[dtype].at(here) - read[dtype].at(there) for dtype in (FLOAT32, BFLOAT16)
        )
        row = {"length": key[0], "seed": key[1], "distance": float(exact.norm())}
        rows.append(
            row
            | {
                "noise": float((rounded - exact).norm()),
                "norm": float(read[FLOAT32].at(here).norm()),
            }
        )
    return pd.DataFrame(rows, columns=["length", "seed", "distance", "noise", "norm"]).set_index(
        ["length", "seed"]
    )


def keep(directory: Path, name: str, lines: Sequence[Line], read: Mapping[str, Read]) -> None:
    """y of the questions asked, in bfloat16's arithmetic, at every position, with the length, seed
    and right answer of each.
    """
    directory.mkdir(parents=True, exist_ok=True)
    y: dict[str, Any] = {
        p: np.stack([read[BFLOAT16].at(line.ids[p]).numpy() for line in lines]) for p in POSITIONS
    }
    about = np.array([(line.length, line.seed, int(line.key)) for line in lines])
    with open(directory / f"{name}.npz", "wb") as file:
        np.savez(file, about=about, **y)


def probe(
    model: TransformerBridge, *, name: str, directory: Path, kept: Sequence[str], is_random: bool
) -> None:
    """What ridge probes of the right number, fitted on other sequences, say of each question, from
    y at each position.

    Columns as of `said_by_probes`; the sites are the positions, and "length". Sequences of one seed
    are one group.
    """
    parts = [np.load(directory / f"{each}.npz") for each in kept]
    lengths, seeds, keys = np.concatenate([part["about"] for part in parts]).T
    groups = seeds if is_random else lengths
    questions = pd.DataFrame({"length": lengths, "seed": seeds, "group": groups, "label": keys})
    probes = splits(lengths, groups, is_random)
    positions = [position for position in POSITIONS if position in parts[0]]
    places = {
        Place(depth, position, 0): torch.from_numpy(
            np.concatenate([part[position] for part in parts])
        )
        for depth, position in enumerate(positions)
    }
    said = [
        said_by_probes(questions, probes, places, CONTROLS),
        said_by_probes(questions, probes, {LENGTH: of_length(lengths)}, ("none",)),
    ]
    store(name, pd.concat(said, ignore_index=True).assign(dtype=BFLOAT16))


def randomise(model: TransformerBridge, seed: int = 0) -> None:
    """Give the model itself random weights: matrices normal with the configuration's spread, biases
    0, gains 1.
    """
    original: Any = model.original_model
    torch.manual_seed(seed)
    with torch.no_grad():
        for label, weight in original.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, original.config.initializer_range)
            else:
                weight.fill_(0.0 if label.endswith("bias") else 1.0)


def measure_random(
    model: TransformerBridge, *, name: str, directory: Path, asked: Sequence[str]
) -> None:
    """The probes of y at the answer from random weights. The last cell: the model has lost its own
    weights afterwards.
    """
    every = [lines_of(model, [cell], (), ())[1] for cell in asked]
    randomise(model)
    for cell, lines in zip(asked, every, strict=True):
        y = Read.by(model, BFLOAT16, lines.values())
        about = np.array([(line.length, line.seed, int(line.key)) for line in lines.values()])
        rows = np.stack([y.at(line.ids[ANSWER]).numpy() for line in lines.values()])
        np.savez(directory / f"random-{cell}.npz", about=about, answer=rows)
    probe(
        model,
        name=name,
        directory=directory,
        kept=[f"random-{cell}" for cell in asked],
        is_random=True,
    )
