"""Representational collapse (Theorem 4.2 / B.3): how far v and v* = v with its last token repeated
still are apart.

Floors stand beside every distance. The machine line is one representable step in every coordinate.
The noise is what rounding while running did to v itself, ||y(v) - y_float64(v)||, both with the
same stored weights. `pair_noise` is what it did to the difference y - y*, and decides: a pair is
hidden where its float64 distance is below it (`verdicts`). Rounding the weights is no noise by this
definition: it moves v and v* alike, by `weight_shift`.

Cost: one forward pass per precision and seed for all lengths, the same in float64 once for each way
in which the weights are stored, and in each a shorter pass to check it (in 16 bits five, and one
for every prompt at the end of a range); O(N) tokens for N lengths, where a loop reads O(N^2).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, Unpack

import pandas as pd

from ostools.ground import (
    InputError,
    Lengths,
    Position,
    Progress,
    TransformerBridge,
    checked_lengths,
)
from ostools.measure.collapse.distances import REFERENCE
from ostools.measure.collapse.prompt_sets import PromptSet, RenderedPairs, as_pairs
from ostools.measure.collapse.result import Collapse, from_rows
from ostools.measure.collapse.run import CollapseRun
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import effect_entry
from ostools.measure.passes.contexts import require_float64_views
from ostools.measure.passes.precisions import checked_precisions
from ostools.measure.position import reading
from ostools.measure.prompts import layers_up_to
from ostools.measure.swept import READ_POSITION, Swept
from ostools.mitigations import Mitigation, label, optional
from ostools.mitigations.passes import own_windows
from ostools.models import EncodingOptions, Prompt, context_length
from ostools.results import Provenance
from ostools.tasks import CollapseTask, RepeatTask, Task
from ostools.tasks.base import seeds_of
from ostools.tasks.repeats import TaskOfIds


@measurement(
    command="collapse",
    examples=(
        "--task figure-5a --lengths 1:512 --dtypes bfloat16 --out x.html",
        "--task figure-5c --layers all --out layers.png",
    ),
    defaults={"task": "figure-5a", "lengths": "1:256"},
    python_only={"prompt": "its last token is repeated; a command line repeats items of a task"},
    memory=["logits"],
    sweep=lambda: SWEPT,
    in_chunks=True,
    checks=(checked_precisions,),
)
def collapse(
    model: TransformerBridge,
    task: CollapseTask | Task | Prompt | str | None = None,
    *,
    lengths: Lengths,
    prompt: str | Prompt | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seeds: Sequence[int] = (0,),
    layers: Literal["all"] | Iterable[int] | None = None,
    mitigation: Mitigation | str | None = None,
    position: Position | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Collapse:
    """Distances between the last-token representations of a task's pairs, at every length and in
    every dtype.

    Args:
        task: pairs such as `tasks.figure_5a()`, a `tasks.Task` with text after its sequence, or the
            name of one. Or a `Prompt`, whose last token is repeated, or token ids:
            `tasks.RepeatedIds(...)`, `tasks.PairsOfIds(...)`.
        prompt: in place of a task, a text of your own, whose last token is repeated. To repeat an
            item of your own after it, give the task `tasks.RepeatTask("mine", prompt, item)`.
        lengths: numbers of items in the sequence. Length n compares the prompt of n items with the
            same prompt, its last token repeated.
        dtypes: precisions that are compared with float64: a dtype casts the whole model;
            "<format>-<part>" is float32 arithmetic with that part alone (weights, residual, kv)
            stored in the format.
        seeds: one digit stream for each, if the task draws digits.
        layers: blocks after which v^(l) is compared too: "all", or numbers from 0 (the embedding)
            to L, the last block, which is always there.
        mitigation: a `mitigations.Mitigation` or its name with options. The pairs are those that it
            rewrites. Its hooks act in every dtype and in float64; with hooks, prompts go one by
            one.
        position: where a task's prompts are read: "answer", the token from which the answer is
            predicted, with the answer line begun (the default); "prompt-end", the paper's y_n;
            "last-item", the last token of the sequence.
        progress: called as progress(done, total) after each forward pass.

    How prompts are encoded: `EncodingOptions`; pairs whose last token is repeated are in no chat
    template.

    The rows of a dtype that overflows (float16, float8) hold no number. Raises `InputError` for a
    tokenizer that merges the repeated item, lengths beyond the context, other numbers that are not
    finite, and active edits. Source: arXiv 2406.04267, Theorem 4.2 / B.3 and Figure 5.
    """
    subject = _task_or_prompt(task, prompt)
    acting, bos, chat = optional(mitigation), encoding.get("bos"), encoding.get("chat")
    pairs = as_pairs(model, subject, acting, position, encoding)
    length_list, precisions = checked_lengths(lengths), checked_precisions(dtypes)
    seed_list = seeds_of(pairs, seeds)
    require_float64_views("collapse", model)
    kept_layers = layers_up_to(int(model.cfg.n_layers), layers)
    # All prompts are built: what does not fit is refused before the first pass.
    sets = [PromptSet.build(model, pairs, length_list, seed, bos) for seed in seed_list]
    arguments: dict[str, object] = {
        "bos": bos,
        "chat": chat,
        **(subject.provenance if isinstance(subject, Prompt) else {}),
        "task": pairs.name,
        "items": pairs.items,
        "lengths": length_list,
        "seeds": seed_list,
        **(pairs.provenance_columns() if isinstance(pairs, TaskOfIds) else {}),
        "mitigation": label(acting),
        "dtypes": [precision.name for precision in precisions],
        "layers": kept_layers,
        "limits": {
            "sliding_windows": sorted(set(own_windows(model).values())),
            "context": context_length(model),
        },
    }
    is_rewritten = False
    if isinstance(pairs, RenderedPairs):
        is_rewritten = any(pairs.rewritten(length_list, seed) for seed in seed_list)
        ends = (length_list[0], length_list[-1])
        read = list(pairs.prompts(ends, seed_list[0]).values())
        arguments |= {"read_at": reading(model, read), **read[0].task_prompt.prompt.provenance}
    prompt_ids = [ids for prompts in sets for ids in prompts.prompts]
    arguments |= effect_entry(model, acting, (REFERENCE, *precisions), prompt_ids, is_rewritten)
    longest = max((prompts.longest() for prompts in sets), key=len)
    described = Provenance.collect(model, longest, measurement="collapse", **arguments)
    rows, about = CollapseRun(model, sets, acting, kept_layers).rows(precisions, progress)
    return Collapse(rows, replace(described, parameters={**described.parameters, **about}))


Subject: TypeAlias = CollapseTask | Task | Prompt | str
"""What pairs are made of."""


def _task_or_prompt(task: Subject | None, prompt: str | Prompt | None) -> Subject:
    """The one of the two that was given."""
    subject = task if prompt is None else prompt
    if subject is None or (task is not None and prompt is not None):
        raise InputError(
            "collapse: expected a task, such as 'figure-5a', or prompt=, whose last token is "
            f"repeated, found {'neither' if subject is None else 'both'}"
        )
    # The last token of a text is repeated by its id: its text could become another token beside a
    # copy.
    return RepeatTask("prompt", prompt, None, "ids") if isinstance(prompt, str) else subject


SWEPT = Swept(
    read=from_rows,
    options={"bos": None, "layers": None, "chat": None, **READ_POSITION},
    casts=True,
    # Each text is a seed of its own: what is said of seeds is said over texts.
    of_texts=lambda results, provenance: from_rows(
        pd.concat([result.frame.assign(seed=n) for n, result in enumerate(results)]), provenance
    ),
)
