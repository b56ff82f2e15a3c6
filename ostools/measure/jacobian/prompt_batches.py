"""Prompts of one length side by side: one pass to start from, one to read, one of every check; and one certificate.

Every prompt's Jacobians are its own, and so are the checks of its blocks, its logits and, in a batch, of one random row of its
Jacobians against autograd. Finite differences, which cost as much as all the rest of a short prompt, are taken of one prompt
of a batch alone: the formulas are the same for all. Where they say nothing there, every prompt has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError
from ostools.ground.memory import available_memory
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import Progress, part_of, rising
from ostools.measure.formulas.forward import KEPT_BYTES, Forward, forwards
from ostools.measure.jacobian.certificate import FROM_EMBEDDINGS, require_same_logits
from ostools.measure.jacobian.linearisation_run import LinearisationRun, MeasuredNorms, Oracle, Settings, Start
from ostools.measure.jacobian.memory import graph_bytes, plan
from ostools.measure.jacobian.norms import choose_method, most_rows
from ostools.measure.jacobian.routes import AutogradRoute, freezing
from ostools.measure.passes.batches import batches
from ostools.measure.passes.contexts import run_from, strips_where_long
from ostools.models import Prompt
from ostools.models.shape import Shape

ByName = dict[str, MeasuredNorms]
Announce = Callable[[str], None]


@dataclass(frozen=True)
class JacobianOptions:
    """Options of a sensitivity: which linearisations, at which layers, and how; of w^T y_n where `logit` = w."""

    names: Sequence[str]
    layers: Sequence[int]
    settings: Settings
    logit: Float[Tensor, " d_model"] | None = None


def measured(
    model: TransformerBridge,
    prompts: Sequence[Prompt],
    options: JacobianOptions,
    announce: Announce | None,
    progress: Progress | None,
) -> list[ByName]:
    """The norms of every prompt by linearisation, in the prompts' order.

    Prompts of one length share their passes, as many as the memory holds; under an edit, which may know of one prompt at a
    time, each has its own. A batch that fails is measured prompt by prompt. Raises `InputError` for the prompt that then fails,
    and says which.
    """
    norms_by_prompt: dict[int, ByName] = {}
    rising_progress = rising(progress)
    for indices in _batches(model, prompts, options):
        part = part_of(
            rising_progress, len(norms_by_prompt), len(norms_by_prompt) + len(indices), len(prompts), units=100
        )
        norms_by_prompt |= zip(indices, _batch(model, prompts, indices, options, announce, part), strict=True)
    return [norms_by_prompt[index] for index in range(len(prompts))]


def _batches(model: TransformerBridge, prompts: Sequence[Prompt], options: JacobianOptions) -> Iterator[list[int]]:
    """Indices of prompts of one length, shortest first, as many as one pass holds."""
    shape, lengths = Shape.of(model), [len(prompt.ids) for prompt in prompts]
    alone = options.logit is not None or any(edit.kind != "exact-arithmetic" for edit in hooks.active_edits(model))
    for indices in batches(lengths, padded=False, tokens=sum(lengths)):
        most = 1 if alone or len(indices) == 1 else _most_together(shape, lengths[indices[0]], options, _device(model))
        yield from (indices[start : start + most] for start in range(0, len(indices), most))


def _most_together(shape: Shape, pos: int, options: JacobianOptions, device: torch.device) -> int:
    """Number of prompts of `pos` tokens that one pass holds, beside what one of them takes after it, and their graphs."""
    settings, sites = options.settings, shape.site_bytes(pos)
    limit = chunk(available_memory(device)) if settings.max_memory is None else settings.max_memory
    method = choose_method(shape.d_model, exact_fits=True).method if settings.method == "auto" else settings.method
    rows = None if method == "exact" else most_rows(shape.d_model, method, settings.cotangents)
    try:
        peak = plan(shape, pos, len(options.layers), live=True, max_memory=limit, rows=rows).peak
    except InputError:
        return 1
    return max(
        1, min(chunk(KEPT_BYTES) // sites, 1 + (limit - peak) // sites, limit // (sites + graph_bytes(shape, pos)))
    )


def _batch(
    model: TransformerBridge,
    prompts: Sequence[Prompt],
    indices: Sequence[int],
    options: JacobianOptions,
    announce: Announce | None,
    progress: Progress | None,
) -> list[ByName]:
    """The norms of the prompts of one batch, whose places in the call are `indices`."""
    ids = torch.stack([prompts[index].ids for index in indices]).to(_device(model))
    try:
        with strips_where_long(model, ids.shape[1]):
            return _PromptBatch.of(model, ids, indices, options).measured(announce, progress)
    except (InputError, hooks.HookError) as error:
        if len(prompts) == 1:
            raise
        if len(indices) == 1:
            (index,) = indices
            raise type(error)(f"prompt {index + 1} of {len(prompts)} ({_start_of(prompts[index])}): {error}") from error
    singles = ((at, [index]) for at, index in enumerate(indices))
    return [
        norms
        for at, alone in singles
        for norms in _batch(
            model, prompts, alone, options, announce, part_of(progress, at, at + 1, len(indices), units=100)
        )
    ]


def _start_of(prompt: Prompt) -> str:
    text = "".join(prompt.tokens) if prompt.text is None else prompt.text
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _device(model: TransformerBridge) -> torch.device:
    return next(model.parameters()).device


@dataclass(frozen=True)
class _PromptBatch:
    """Prompts of one length whose passes were proved equal and read."""

    model: TransformerBridge
    starts: Sequence[Start]
    numbers: Sequence[int]
    options: JacobianOptions

    @classmethod
    def of(
        cls,
        model: TransformerBridge,
        ids: Int[Tensor, "prompt pos"],
        numbers: Sequence[int],
        options: JacobianOptions,
    ) -> _PromptBatch:
        """v^(0) and the plain logits of every prompt, after proving that the pass from v^(0) gives the same logits.

        Those of the last token, whose Jacobian is meant: a large vocabulary's at every token would outweigh the rest of the
        run. The pass that the formulas read is every linearisation's; where they cannot read it, each says why.
        """
        try:
            runs = forwards(model, ids)
            reads: Sequence[Forward | None] = runs
            plain = torch.stack([run.logits for run in runs])
        except InputError:
            reads = [None] * len(ids)
            with torch.no_grad():
                plain = model(ids, logits_to_keep=1)
        with torch.no_grad():
            embedded = model.input_to_embed(ids)[0].detach()
            from_embedding = run_from(model, embedded)
        require_same_logits(plain, from_embedding, "the forward pass from embeddings", FROM_EMBEDDINGS)
        starts = [Start(*parts) for parts in zip(ids, embedded, plain, reads, strict=True)]
        return cls(model, starts, numbers, options)

    def measured(self, announce: Announce | None, progress: Progress | None) -> list[ByName]:
        """Measure the first prompt with its certificates; the others without those that were informative there."""
        once, count = _once(announce), len(self.starts)
        prompt_progress = [part_of(progress, at, at + 1, count, units=100) for at in range(count)]
        norms_by_prompt = [self._of_one(self.starts[0], {}, once, prompt_progress[0])]
        oracles: dict[str, list[Oracle]] = {}
        if count > 1:
            oracles = {name: self._oracles(name) for name, norms in norms_by_prompt[0].items() if _may_share(norms)}
        for at in range(1, count):
            own_oracles = {name: rows[at] for name, rows in oracles.items()}
            norms_by_prompt.append(self._of_one(self.starts[at], own_oracles, once, prompt_progress[at]))
        return norms_by_prompt

    def _of_one(
        self, start: Start, oracles: Mapping[str, Oracle], announce: Announce | None, progress: Progress | None
    ) -> ByName:
        """Measure every linearisation of one prompt; its account says how many prompts shared its passes."""
        names, norms_by_name = self.options.names, {}
        start = replace(start, cores={})  # they go when this prompt is done
        for index, name in enumerate(names):
            name_progress = part_of(progress, index, index + 1, len(names), units=100)
            linearisation_run = LinearisationRun(
                self.model, start, name, self.options.layers, self._settings, self.options.logit
            )
            norms = linearisation_run.measured(announce, name_progress, oracles.get(name))
            norms_by_name[name] = replace(norms, account={**norms.account, "prompts_together": len(self.starts)})
        return norms_by_name

    @property
    def _settings(self) -> Settings:
        """Settings with the memory that is left beside the passes of the other prompts."""
        settings = self.options.settings
        if settings.max_memory is None or len(self.starts) == 1:
            return settings
        held_bytes = (len(self.starts) - 1) * Shape.of(self.model).site_bytes(len(self.starts[0].ids))
        return replace(settings, max_memory=settings.max_memory - held_bytes)

    def _oracles(self, name: str) -> list[Oracle]:
        """A random row of every prompt's Jacobians, by autograd: one pass for all, there and back."""
        embedded = torch.stack([start.embedded for start in self.starts])
        generator = torch.Generator().manual_seed(0)
        cotangents = torch.randn(len(embedded), embedded.shape[-1], generator=generator, dtype=torch.float64)
        cotangents = cotangents.to(embedded)
        route = AutogradRoute(
            self.model,
            embedded,
            freeze=freezing(self.model, name),
            rows=len(embedded),
            layers=tuple(self.options.layers),
        )
        rows = route.pull(cotangents)
        return [Oracle(cotangent, row, 1 + self.numbers[0]) for cotangent, row in zip(cotangents, rows, strict=True)]


def _may_share(certified: MeasuredNorms) -> bool:
    """Whether a certificate may be shared: by the formulas, which are every prompt's, and informative finite differences."""
    account = certified.account
    return account["route"] == "analytic" and account["certificate"]["informative"]


def _once(announce: Announce | None) -> Announce | None:
    """Says nothing twice: prompts of one length have one forecast."""
    if announce is None:
        return None
    announced: set[str] = set()

    def announce_once(text: str) -> None:
        if text not in announced:
            announced.add(text)
            announce(text)

    return announce_once
