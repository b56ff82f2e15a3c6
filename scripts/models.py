"""docs/models.md from the records: `python -m scripts.models` tries every route on a tiny random
model of every family first.

A route that a record claims and that does not hold, or holds and is not claimed, ends it before a
word is written. What holds means is what the tests of each route say; here it is that the route
runs where it should and refuses where it should.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InputError
from ostools.hooks.sites import is_closed, unknown_inside
from ostools.models.families import FAMILIES, ROUTES, Family, family_of
from tests.checkpoints import FAMILIES as FIRST
from tests.checkpoints import make_model, write_checkpoint
from tests.families import OTHERS
from tests.generic_models import GENERIC, generic_model

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
FEW = 4
"""Families without a route that are named; a route that more are without has a column."""
IDS = [2, 40, 50, 60, 60, 61, 70, 71]

_ABOVE = """# Families of models

Any of these families loads, from a directory in Hugging Face format or by a hub id; a checkpoint
whose config.json names code of its own (`auto_map`) is refused. `python -m scripts.models` tries
every route on a tiny random model of each and writes this page.
`ostools list models --check DIR_OR_ID` says of one model by which route it goes and what is refused.

*logits*: `=` where they are Hugging Face's eager ones in float32 to the bit; `~` where sums are added
in another order, which moved them by less than 10^-6 of the largest.
"""

_BELOW = """
What a block adds, computed by the formulas from the weights as they were read, has to be what the
model itself added, on every prompt; else, and where a family has no formulas, `bounds` refuses with
the reason. Experts are measured with the router live.
"""

_GENERIC = """
## By the generic route

Whatever else transformers loads as a causal language model goes by the generic route, without a
record; so does any model with `load_model(..., route="generic")`. v^(l) is the residual stream
between two of Hugging Face's own blocks, y the output of the final norm. Both are found by
structure and proven at load: v^(l), put into a pass over other tokens, has to give the same logits.

`sensitivity` measures `full` there, and `attribution` the real gradient of a logit times each token's
embedding, with a remainder. `collapse`, `evaluate`, `probe`, `probe stage` and `faithfulness` (tokens
removed) need nothing else. What needs more of the inside (`detached`, `bounds`, `hops`,
masks) is refused in one line.

Patterns are known where each block computes one softmax over keys and nothing else carries one token
to another; norms where each is a module of a known form. Both are proven at load. With both,
`frozen`, `frozen-attention` and `frozen-norm` are measured as by a record.
In latent attention (DeepSeek) a value is a matrix times a normed latent of v: with
that scale held it is the theorem's W_V. Gates on what attention gives, and the weights of a router,
stay live; a router's choice is held as it is at the prompt. Of state-space and linear-attention blocks
`full` is the real derivative; the paper's statements are not about them.

A model whose own code computes its attention (CodeGen, XGLM) is refused in bfloat16 and float16, where
scores and softmax are float32, and runs as `bfloat16-eager`, which is what its code does.

Tiny random models, float32, each by the route that it takes by itself: logits against Hugging Face's
own, and the measured `full` and `frozen` derivatives against finite differences (relative). The
differences have an error of their own, which falls with the square of their step. It is the greatest
in Gemma 4, whose scores have no factor 1/sqrt(d_head) and are steep: in float64 its `full` agrees to
4e-9, and its float32 norms are those of float64 to 1e-5.
"""

_REFUSED = """
## What no record describes
"""


def held(family: str, folder: Path) -> tuple[Family, dict[str, bool], bool]:
    """The record of a tiny model, which routes hold on it, and whether its logits are Hugging
    Face's to the bit.
    """
    write_checkpoint(folder, family, seed=1)
    model = ost.load_model(folder, device="cpu", dtype="float32")
    record = family_of(model)
    assert record is not None
    prompt = ost.Prompt.from_ids(model, IDS)

    def paths(*variants: str) -> Callable[[], object]:
        return lambda: ost.bounds(model, prompt, variants=variants)

    tries: tuple[Callable[[], object], ...] = (
        paths("local", "windowed(1)", "windowed(2)"),
        paths("proof", "theorem-5.1", "theorem-b5"),
    )
    found = {name: _holds(attempt) for name, attempt in zip(ROUTES, tries, strict=True)}
    if (
        family == "gemma3-multimodal"
    ):  # Hugging Face's class of the text part alone is the family above it
        return record, found, record.exact
    ids = torch.randint(10, 200, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return (
            record,
            found,
            torch.equal(model(ids), make_model(family, seed=1)(ids, use_cache=False).logits),
        )


def _holds(attempt: Callable[[], object]) -> bool:
    """Whether it runs. A refusal is an answer; whatever else it raises is a slip, and comes
    through.
    """
    try:
        attempt()
    except (InputError, hooks.HookError):
        return False
    return True


def page(generic: list[str]) -> str:
    """The page, from the records and the lines of the generic route."""
    loads = [family for family in FAMILIES if family.refused is None]
    refused = [family for family in FAMILIES if family.refused is not None]
    without = {route: [one.name for one in loads if not one.routes[route]] for route in ROUTES}
    shown = [route for route in ROUTES if len(without[route]) > FEW]
    head = ["family", "`architectures`", "logits", *shown]
    lines = [_row(head), _row(["---"] * 2 + [":-:"] * (len(head) - 2))]
    for one in loads:
        marks = ["yes" if one.routes[route] else "" for route in shown]
        lines.append(_row([one.name, f"`{one.architecture}`", "=" if one.exact else "~", *marks]))
    lines.append("")
    for route, what in ROUTES.items():
        all_but = f" (all but {', '.join(without[route])})" if without[route] else " (all)"
        lines.append(f"- *{route}*{'' if route in shown else all_but}: {what}.")
    reasons: dict[str, list[str]] = {}
    for family in refused:
        route = "; it goes by the generic route" if family.generic_instead else ""
        reasons.setdefault(f"{family.refused}{route}", []).append(family.name)
    for family in loads:
        if family.not_eager is not None:
            reasons.setdefault(family.not_eager, []).append(f"{family.name} in bfloat16-eager")
    below = [f"- {', '.join(names)}: {why}." for why, names in reasons.items()]
    return "\n".join(
        [
            _ABOVE,
            *lines,
            _BELOW.rstrip("\n"),
            _GENERIC,
            *generic,
            _REFUSED.rstrip("\n"),
            "",
            *below,
            "",
        ]
    )


def generic_lines() -> list[str]:
    """What each of `tests.generic_models` gets by the route that it takes, by running: the types
    with one outcome on a line, and how far numbers are off at most.
    """
    outcomes: dict[str, list[str]] = {}
    most: dict[str, tuple[float, str]] = {}
    for kind in sorted(GENERIC):
        with tempfile.TemporaryDirectory() as folder:
            own = generic_model(kind)
            own.save_pretrained(folder)
            try:
                model = ost.load_model(folder, device="cpu", dtype="float32")
                with torch.no_grad():
                    ids = torch.tensor([IDS])
                    apart = float((own(ids, use_cache=False).logits - model(ids)).abs().max())
                found = ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), layers="all")
                runs = found.provenance.parameters["runs"]
                errors = {name: run["certificate"]["error"] for name, run in runs.items()}
            except InputError as refusal:
                why = str(refusal).replace(str(folder), "it").split(";")[0]
                outcomes.setdefault(f"refused: {why}", []).append(kind)
                continue
        for name, error in {"logits": apart, **errors}.items():
            most[name] = max(most.get(name, (0.0, "")), (error, kind))
        record = family_of(model) if not is_closed(model) else None
        refused = unknown_inside(model, "patterns", "norms")
        words = "by a record" if record else f"`full` alone: {refused}" if refused else FROZEN
        outcomes.setdefault(words, []).append(kind)
    off = ", ".join(f"{name} {error:.0e} (`{kind}`)" for name, (error, kind) in most.items())
    return [
        f"The greatest differences among them: {off}.",
        "",
        *(
            f"- *{words}*: {', '.join(f'`{kind}`' for kind in outcomes[words])}."
            for words in outcomes
        ),
    ]


FROZEN = "`full` and `frozen`"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def differences() -> list[str]:
    """What the records say and running does not; one line each."""
    found = []
    for family in (*FIRST, *OTHERS):
        with tempfile.TemporaryDirectory() as folder:
            record, routes, exact = held(family, Path(folder))
        wrong = [name for name, holds in routes.items() if holds != record.routes[name]]
        wrong += [] if exact == record.exact or not record.exact else ["logits"]
        found += (
            [f"{family}: the record of {record.name} is not what runs: {', '.join(wrong)}"]
            if wrong
            else []
        )
    return found


if __name__ == "__main__":
    if wrong := differences():
        sys.exit("\n".join(wrong))
    PAGE.write_text(page(generic_lines()), encoding="utf-8")
