"""Activation patching: activations of a clean run put into a corrupt one, and the other way;
attention edges knocked out.

    share of a patch = (m(patched) - m(host)) / (m(donor) - m(host))

m is log p of the answer, or its logit.
Denoising puts the clean run's activation into the corrupt run (does this part suffice?), noising
the corrupt run's into the clean one (is it needed?). Knockout hides keys from queries over a window
of layers of the clean run, as Geva et al. do.

Cost: for each part and direction a row of a batch, over the tokens and blocks that the part can
change (`runs`): of edges of the last token one token, of a residual stream on average a quarter of
a pass. One or two gradients for all parts of a direction.

Sources: Meng et al. 2022 (arXiv 2202.05262), Zhang and Nanda 2024 (2309.16042: denoising, noising,
logit difference), Geva et al. 2023 (2304.14767: knockout), Nanda 2023 (attribution patching: first
order).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Unpack

import pandas as pd
import torch

from ostools import mitigations
from ostools.ground import (
    InputError,
    Position,
    Progress,
    TransformerBridge,
    whole_number,
    whole_numbers,
    with_progress,
)
from ostools.measure.first_order import agreement_table
from ostools.measure.jacobian.linearise import differentiated
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.batches import TOKENS
from ostools.measure.passes.output import logit_ids
from ostools.measure.patching.runs import EDGES, HEADS, RESIDUAL, Patch, Patcher, PromptRun, What
from ostools.measure.position import predicted_token
from ostools.measure.prompts import agreeing, layers_up_to
from ostools.measure.task_prompt import TaskPrompt, encoding_of, render_question
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt, encode
from ostools.models.tokens import token_text
from ostools.results import Chart, Frame, Provenance, Result, TableHead
from ostools.tasks import Question
from ostools.tasks.questions import question

DENOISING, NOISING, KNOCKOUT = "denoising", "noising", "knockout"
LOG_P, LOGIT, DIFFERENCE = "log_probability", "logit", "logit_difference"
_COLUMNS = (
    *("direction", "part", "layer", "position", "positions", "token", "head"),
    *("answer", "against", "quantity", "clean", "corrupt"),
    *("patched", "effect", "share", "predicted_effect"),
)
_ROUNDINGS = 64
"""A gap up to this many roundings of the greatest logit is none: what is left of sums over d_model
and over the vocabulary.
"""


@dataclass(frozen=True, eq=False)
class Patching(Result):
    """One row per direction, part and quantity.

    Columns: direction (denoising: clean into corrupt; noising: corrupt into clean; knockout: edges
    cut in the clean run), part (its name), layer (of residual streams l of v^(l), L what the last
    block leaves; else of the block, the first of a window), position (the first of those that are
    patched together; NA for a head), positions (all of them, as text), token (the clean prompt's),
    head (NA but for heads); answer (the token that is scored), against ("" where there is no second
    one); quantity (log_probability of the answer, nats; logit, or logit_difference of the two
    answers, the model's own, after a soft-cap); clean, corrupt (the two runs without a patch),
    patched, effect (patched minus the run that was patched), share (of the gap to the other run: 0
    nothing, 1 all of it), predicted_effect (first order; NaN where it was not asked for).
    """

    key: ClassVar = ("direction", "part", "answer", "against", "quantity")

    @property
    def of_logits(self) -> Frame:
        """The rows of the logit, or of the difference of two."""
        table: Frame = self.frame
        return table[table["quantity"] != LOG_P]

    @property
    def has_both_answers(self) -> bool:
        """Whether each run has its own answer, or one is scored alone: else a share of the gap
        between them says nothing."""
        rows = self.of_logits
        signs_differ = (rows["clean"] > 0) & (rows["corrupt"] < 0)
        return bool(((rows["against"] == "") | signs_differ).all())

    def shown_tables(self) -> list[tuple[str, Frame]]:
        """By the share of the gap, or where there are not both answers by the effect."""
        columns = "direction part token quantity patched effect"
        by_effect = TableHead(columns=columns, greatest="effect")
        by_share = TableHead(columns=f"{columns} share", greatest="share")
        return [(by_share if self.has_both_answers else by_effect).of(self)]

    @property
    def agreement(self) -> pd.DataFrame:
        """Table of how well first order predicted the effects
        (`measure.first_order.first_order_agreement`), a row a direction and quantity. Raises
        `InputError` where no first order was asked for."""
        frame: Frame = self.frame
        if frame["predicted_effect"].isna().any():
            raise InputError(
                "agreement: expected effects to first order, found none: patch with "
                "first_order=True"
            )
        return agreement_table(frame, ("direction", "quantity"), "part")

    def chart(self) -> Chart:
        from ostools.reporting.charts.interventions import patching_chart

        return patching_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.effects import patching_findings

        return patching_findings(self)


@measurement(
    command="ablate patch",
    examples=(
        "--task copy-last --length 8 --out patch.png",
        '--prompt "Anna has a cat. Anna has a" --corrupt "Anna has a dog. Anna has a" '
        '--logit " cat" --logit " dog"',
        "--task count-ones-bernoulli --length 6 --what edges --window 3",
    ),
    python_only={"positions": "several positions that are patched together are a list of lists"},
    memory=["patterns"],
    sizes={"rows_together": TOKENS},
    in_chunks=True,
)
def patch(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    corrupt: str | Prompt | Question | None = None,
    *,
    what: What = "residual",
    layers: Literal["all"] | Iterable[int] = "all",
    window: int = 1,
    positions: Sequence[int | Sequence[int]] | None = None,
    query_positions: Sequence[int] | None = None,
    logit: str | int | Sequence[str | int] | None = None,
    first_order: bool = True,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Patching:
    """Put activations of a clean run into a corrupt one and the other way, part by part; how much
    of the answer goes with each.

    Args:
        prompt: the clean prompt, whose answer is scored: a text, a `Prompt`, or a task's question.
        corrupt: the corrupt one, of as many tokens. None: the one that the question's task makes (a
            flipped digit, two values exchanged).
        what: what is patched, part by part: "residual" (v^(l) at one position), "attention-out",
            "mlp-out" (what that part of a block adds there), "heads" (the output z of one head, at
            all positions); or "edges": no activation is put in, the queries cannot see one position
            any more (attention knockout).
        layers: which, one by one: numbers, or "all". The residual streams are 0 to L.
        window: so many layers from each on are patched together; not of the residual stream, where
            the last one decides.
        positions: positions, or lists of positions that are patched together; None: all of them,
            each by itself.
        query_positions: of edges, the positions that look; None: the last one.
        logit: the answer's token, or two for the difference of their logits: the clean answer and
            the corrupt one. None: the first tokens of the two questions' right answers; of texts,
            and of questions at another `position` than "answer", the tokens that the model ranks
            first.
        first_order: whether each effect is predicted by one gradient too.
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. Both prompts stand under
            it.
        progress: called as progress(done, total), in percent.

    All is computed in float32, or in float64 for a float64 model. Active edits are respected.
    Raises `InputError` for prompts of different lengths, positions and layers that there are not,
    two answers that begin with the same token, an answer of several tokens (give `logit`), and
    where clean and corrupt are no further apart than rounding: of no gap there is no share.
    """
    corrupt = _corrupt(model, prompt, corrupt)
    mitigated = MitigatedPrompts.of("patch", model, [prompt, corrupt], mitigation, position)
    clean_ids, corrupt_ids = (tuple(tokens.ids.tolist()) for tokens in mitigated.prompts)
    pos = len(clean_ids)
    if pos != len(corrupt_ids):
        raise InputError(
            f"patch: expected two prompts of as many tokens, found {pos} and {len(corrupt_ids)}: "
            "choose words that "
            "the tokenizer makes as many tokens of"
        )
    groups = _groups("positions", range(pos) if positions is None else positions, pos)
    patches = list(_patches(model, what, layers, window, groups))
    queries = _queries(what, query_positions, pos)
    answer = _answer(model, mitigated, logit)
    texts = [token_text(model.tokenizer, token) for token in answer]
    provenance = Provenance.collect(
        model,
        clean_ids,
        measurement="patch",
        what=what,
        window=window,
        queries=queries,
        logit=texts,
        logit_ids=answer,
        corrupt_ids=corrupt_ids,
    )
    part_rows: Frame = pd.DataFrame([_part(patch, mitigated.prompts[0]) for patch in patches])
    part_rows = part_rows.astype({"position": "Int64", "head": "Int64"})
    tables = []
    with differentiated(model, mitigated) as work:
        dtype = next(work.parameters()).dtype
        patcher = Patcher(work, what, answer, agreeing(clean_ids, corrupt_ids), queries)
        clean, corrupted = patcher.run(clean_ids), patcher.run(corrupt_ids)
        _require_apart(clean, corrupted, texts, dtype)
        ways = {DENOISING: (corrupted, clean), NOISING: (clean, corrupted)}
        if what == EDGES:
            ways = {KNOCKOUT: (clean, corrupted)}
        for (direction, (host, donor)), part in with_progress(ways.items(), progress):
            patched, effect = patcher.patched(host, donor, patches, part)
            predicted = torch.full_like(effect, torch.nan)
            if first_order:
                predicted = patcher.predicted(host, donor, patches)
            share = effect / (donor.numbers - host.numbers)
            for place, quantity in enumerate((LOG_P, DIFFERENCE if len(answer) == 2 else LOGIT)):
                numbers = {
                    "clean": float(clean.numbers[0, place]),
                    "corrupt": float(corrupted.numbers[0, place]),
                    "patched": patched[:, place].numpy(),
                    "effect": effect[:, place].numpy(),
                    "share": share[:, place].numpy(),
                    "predicted_effect": predicted[:, place].numpy(),
                }
                tables.append(part_rows.assign(direction=direction, quantity=quantity, **numbers))
    frame: Frame = pd.concat(tables, ignore_index=True)
    frame = frame.assign(answer=texts[0], against="".join(texts[1:]))[list(_COLUMNS)]
    described = mitigated.described(model) | {"computed_in": str(dtype).removeprefix("torch.")}
    return Patching(frame, replace(provenance, parameters={**provenance.parameters, **described}))


def _corrupt(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    corrupt: str | Prompt | Question | None,
) -> str | Prompt | Question:
    """The corrupt prompt, encoded as the clean one; the one that the question's task makes where
    none is given.
    """
    if isinstance(corrupt, str):
        return (
            encode(model, corrupt, **encoding_of(prompt)) if isinstance(prompt, Prompt) else corrupt
        )
    if corrupt is not None:
        return corrupt
    if not isinstance(prompt, Question) or prompt.rewritten or prompt.prefill is not None:
        raise InputError(
            "patch: expected a corrupt prompt, found none; a task makes one of its own question, "
            "as ost.tasks.questions gives "
            "it without a mitigation"
        )
    twin = question(prompt.task.corrupted(), prompt.length, seed=prompt.seed)
    return (
        render_question(model, twin, **encoding_of(prompt.prompt))
        if isinstance(prompt, TaskPrompt)
        else twin
    )


def _patches(
    model: TransformerBridge,
    what: str,
    layers: Literal["all"] | Iterable[int],
    window: int,
    groups: Sequence[tuple[int, ...]],
) -> Iterator[Patch]:
    """Every part: layer by layer, and in it position by position, or head by head."""
    n_layers = int(model.cfg.n_layers)
    whole_number("window", window, 1, 1 if what == RESIDUAL else n_layers)
    last = n_layers - (window if what != RESIDUAL else 0)
    for first in layers_up_to(last, layers):
        layer_window = tuple(range(first, first + window))
        if what == HEADS:
            everywhere = tuple(sorted({place for group in groups for place in group}))
            for head in range(int(model.cfg.n_heads)):
                yield Patch(layer_window, everywhere, head)
        else:
            yield from (Patch(layer_window, group) for group in groups)


def _groups(name: str, positions: Sequence[int | Sequence[int]], pos: int) -> list[tuple[int, ...]]:
    """The positions that are patched together, group by group. Raises `InputError` for one outside
    of the prompt, and for one that is named twice.
    """
    listed = [entry if isinstance(entry, Sequence) else (entry,) for entry in positions]
    groups = [tuple(whole_numbers(name, group, 0, pos - 1)) for group in listed]
    if not groups:
        raise InputError(f"{name}: expected some out of 0..{pos - 1}, found none")
    if len(set(groups)) < len(groups) or [*map(len, groups)] != [*map(len, listed)]:
        raise InputError(
            f"{name}: expected each position or group once, found one twice: it would weigh double"
        )
    return groups


def _queries(what: str, queries: Sequence[int] | None, pos: int) -> tuple[int, ...]:
    if what != EDGES:
        if queries is not None:
            raise InputError(
                f"query_positions: expected what='edges', found {what!r}: leave query_positions out"
            )
        return ()
    return _groups("query_positions", [[pos - 1] if queries is None else queries], pos)[0]


def _answer(
    model: TransformerBridge,
    mitigated: MitigatedPrompts,
    logit: str | int | Sequence[str | int] | None,
) -> tuple[int, ...]:
    """The token that is scored, and the one that it is held against where there are two."""
    if logit is not None:
        return logit_ids(model, logit)
    tokens = tuple(_answer_of(model, mitigated, index) for index in range(2))
    if tokens[0] == tokens[1]:
        raise InputError(
            "patch: expected two answers, found that both begin with "
            f"{token_text(model.tokenizer, tokens[0])!r}: give the two "
            "tokens, logit=(' A', ' B') (--logit ' A' --logit ' B')"
        )
    return tokens


def _answer_of(model: TransformerBridge, mitigated: MitigatedPrompts, index: int) -> int:
    """The first token of a question's right answer; after any other prompt the token that the model
    ranks first.
    """
    read = mitigated.questions[index]
    if read is None or not read.answer:
        with mitigations.running(model, mitigated.mitigation):
            return predicted_token(model, mitigated.prompts[index].ids)
    key, text = read.task_prompt.key, token_text(model.tokenizer, read.token)
    if not text.strip().startswith(key):
        raise InputError(
            f"patch: expected an answer of one token, found {key!r}, which begins with the token "
            f"{text!r}: give logit, the "
            "token that is meant"
        )
    return read.token


def _require_apart(
    clean: PromptRun, corrupt: PromptRun, texts: Sequence[str], dtype: torch.dtype
) -> None:
    """Refuse two runs whose numbers rounding alone keeps apart."""
    size = max(clean.logit_size, corrupt.logit_size)
    gaps = (clean.numbers - corrupt.numbers)[0].abs()
    if not bool((gaps > _ROUNDINGS * torch.finfo(dtype).eps * size).all()):
        raise InputError(
            "patch: expected clean and corrupt runs that differ in "
            f"{' - '.join(map(repr, texts))}, found log p and logit {gaps.tolist()} apart, within "
            "rounding: of no gap there is no share"
        )


def _part(patch: Patch, prompt: Prompt) -> dict[str, object]:
    """What says which part a row is of."""
    layers, positions, head = patch
    window = f"layer {layers[0]}" + f"-{layers[-1]}" * (len(layers) > 1)
    places = ",".join(map(str, positions))
    at_positions = {
        "part": f"{window}, position {places}",
        "layer": layers[0],
        "position": positions[0],
        "positions": places,
        "token": "".join(prompt.tokens[place] for place in positions),
        "head": head,
    }
    of_head = {"part": f"{window}, head {head}", "position": None, "token": ""}
    return at_positions if head is None else at_positions | of_head
