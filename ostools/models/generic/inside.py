"""What is known inside the blocks of a model by the generic route: attention patterns and norms,
found by running, and proven.

Softmax attention of any kind (latent, gated, with sinks, in windows) calls one softmax a block over
[head, query, key]. What it gives is alpha, and a hook point takes it wherever it is made. The
proof: with every alpha made the identity, the last token's logits depend on no other token. So
nothing but alpha carries one token to another, and freezing it holds all that the theorem holds.
State-space and linear-attention blocks fail this proof.

A norm is a module of that name which is g (x - c(x)) / r(x) + b on numbers drawn at random, in one
of the known forms. Code of a block that divides by a size of its input outside of them is a norm
that is not known, and then none is held.

Cost: four tiny forward passes.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product, starmap
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from ostools.hooks.register import Order, attached
from ostools.models.generic.choices import held_choices, noted_choices
from ostools.models.generic.parts import (
    SAME,
    AtEachFunction,
    GenericBridge,
    NormForm,
    Observed,
    Patterns,
    at_each_call,
    class_and_name,
)

_SIZES = {
    *(torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt),
    *(torch.norm, Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm),
    *(functional.layer_norm, functional.rms_norm, functional.group_norm, functional.normalize),
}
"""Calls with which code divides by a size of its input."""
_POWERS = {torch.pow, Tensor.pow, Tensor.__pow__}
_EPS = ("variance_epsilon", "eps", "epsilon")
_PLAIN_EPS = (1e-5, 1e-6)  # of a norm that has none to read
_FORM_ERROR = 1e-5  # most norms compute in float32, whatever they are given


class UnknownError(Exception):
    """Why something inside the blocks is not known."""


def look_inside(bridge: GenericBridge, probe: Int[Tensor, "1 pos"]) -> dict[str, str]:
    """Put hook points at patterns and norms; "patterns", "norms": why what is not known is not."""
    unknown: dict[str, str] = {}
    for what, learn in (("patterns", _learn_patterns), ("norms", _learn_norms)):
        try:
            learn(bridge, probe)
        except UnknownError as why:
            unknown[what] = str(why)
    return unknown


def _learn_patterns(bridge: GenericBridge, probe: Int[Tensor, "1 pos"]) -> None:
    """A hook point for the one softmax of each block. `UnknownError` without one, or where tokens
    meet outside of it.
    """
    patterns = [
        Patterns(f"blocks.{layer}.attn", int(bridge.cfg.n_heads))
        for layer in range(len(bridge.closed_blocks))
    ]
    for block, block_patterns in zip(bridge.closed_blocks, patterns, strict=True):
        block._modules["attn"] = block_patterns  # whatever Hugging Face calls so in its own block
        point = block_patterns.hook_pattern
        bridge._hook_registry[str(point.name)] = point
    try:
        _prove_patterns(bridge, patterns, probe)
    except UnknownError:
        for block, block_patterns in zip(bridge.closed_blocks, patterns, strict=True):
            del block._modules["attn"]
            del bridge._hook_registry[str(block_patterns.hook_pattern.name)]
        raise


def _prove_patterns(
    bridge: GenericBridge, patterns: Sequence[Patterns], probe: Int[Tensor, "1 pos"]
) -> None:
    softmaxes: list[list[Tensor]] = [[] for _ in patterns]
    with _at_patterns(patterns, lambda layer, pattern: softmaxes[layer].append(pattern)):
        bridge(probe)
    pos = probe.shape[1]
    for layer, outputs in enumerate(softmaxes):
        if len(outputs) != 1:
            count = f"{len(outputs)} softmaxes" if outputs else "no softmax"
            raise UnknownError(
                f"block {layer} computes {count} over keys, and softmax attention one"
            )
        sinks = patterns[layer].sinks = outputs[0].shape[-1] - pos
        if sinks not in (0, 1) or bool(outputs[0].float()[..., :pos].triu(1).any()):
            raise UnknownError(
                f"the softmax of block {layer} is not one over the keys that a token may see"
            )

    def identity(layer: int, pattern: Tensor) -> Tensor:
        return torch.eye(pos, dtype=pattern.dtype, device=pattern.device).expand_as(pattern)

    rolled_probe = probe.roll(1, 1)  # another token everywhere
    rolled_probe[:, -1] = probe[:, -1]
    with _at_patterns(patterns, identity), noted_choices(bridge, pos) as choices:
        alone = bridge(probe)[:, -1]
    # The last token's experts are given the tokens of before: passes of one shape round alike.
    with _at_patterns(patterns, identity), held_choices(bridge, choices):
        among_others = bridge(rolled_probe)[:, -1]
    error = float((alone - among_others).abs().max() / alone.abs().max())
    if not error <= SAME:
        raise UnknownError(
            "tokens meet in its blocks outside of a softmax over keys (a state space, a "
            "convolution, linear attention)"
        )


@contextmanager
def _at_patterns(
    patterns: Sequence[Patterns], body: Callable[[int, Tensor], Tensor | None]
) -> Iterator[None]:
    placements = [
        (part.hook_pattern, lambda pattern, layer=layer: body(layer, pattern), Order.EDIT)
        for layer, part in enumerate(patterns)
    ]
    with torch.no_grad(), attached(placements):
        yield


def _learn_norms(bridge: GenericBridge, probe: Int[Tensor, "1 pos"]) -> None:
    """Hook points around every norm that runs in a block, and the forms of all. `UnknownError` for
    a norm of no known form.
    """
    norms = _norms_of(bridge)
    blocks = {f"block {layer}": block.theirs for layer, block in enumerate(bridge.closed_blocks)}
    calls: dict[str, list[tuple[object, ...]]] = {name: [] for name in norms}
    running: list[str] = []

    def enter(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        running.append(name)
        if name in calls:
            calls[name].append((*args, *kwargs.values()))

    def leave(name: str, output: object) -> None:
        running.pop()

    def at_function(func: object, args: tuple[Any, ...], output: object) -> object:
        in_block = bool(running) and running[-1].startswith("block ")
        divides = in_block and _divides(func, args)
        if divides and isinstance(args[0], Tensor) and args[0].numel() > 1:
            raise UnknownError(
                f"{running[-1]} divides by a size of what it reads, and is no module of a norm"
            )
        return output

    with (
        torch.no_grad(),
        at_each_call({**norms, **blocks}, enter, leave),
        AtEachFunction(at_function),
    ):
        bridge(probe)
    forms = {name: _form(name, norms[name], args) for name, args in calls.items() if args}
    known_norms = {"ln_final": (bridge.ln_final, forms.pop("ln_final"))}
    for name, form in forms.items():
        _, layer, path = name.split(".", 2)
        parent, _, last = path.rpartition(".")
        observed = Observed(last)
        observed.set_original_component(norms[name])
        known_norms[name] = (observed, form)
        observed.hook_in.name, observed.hook_out.name = f"{name}.hook_in", f"{name}.hook_out"
        block = bridge.closed_blocks[int(layer)]
        setattr(block.theirs.get_submodule(parent), last, observed)
    bridge.norms = known_norms


def _divides(func: object, args: tuple[Any, ...]) -> bool:
    """Whether code divides by a size of its input with this call."""
    if func not in _POWERS:
        return func in _SIZES
    # A tensor where each number has an exponent of its own (ALiBi's slopes).
    return not {0.5, -0.5, -1.0}.isdisjoint(torch.as_tensor(args[1]).flatten().tolist())


def _norms_of(bridge: GenericBridge) -> dict[str, nn.Module]:
    """Modules that are called a norm and hold no other, by the names of their hook points."""
    norms: dict[str, nn.Module] = {"ln_final": bridge.ln_final.theirs}
    for layer, block in enumerate(bridge.closed_blocks):
        for path, part in block.theirs.named_modules():
            if "norm" in class_and_name(part, path) and not any(part.children()):
                norms[f"blocks.{layer}.{path}"] = part
    return norms


def _form(name: str, module: nn.Module, calls: list[tuple[object, ...]]) -> NormForm:
    """Form of a norm, by what it makes of numbers drawn at random, large and small."""
    kind = f"{name} ({type(module).__name__})"
    if len(calls) != 1 or len(calls[0]) != 1 or not isinstance(calls[0][0], Tensor):
        raise UnknownError(f"{kind} reads other than one tensor, once a pass")
    x = calls[0][0]
    if x.ndim < 3 or x.shape[0] != 1:
        raise UnknownError(f"{kind} reads all prompts of a batch as one")
    weight = getattr(module, "weight", None)
    if weight is not None and weight.shape != x.shape[-weight.ndim :]:
        raise UnknownError(f"{kind} has a weight of another shape than what it reads")
    observed = Observed(name)
    wide = copy.deepcopy(module).double()
    observed.set_original_component(wide)
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(x.shape, generator=generator, dtype=torch.float64) + 0.5
    sizes = 10 ** torch.linspace(-3, 1, x.shape[1], dtype=torch.float64)
    numbers = (numbers * sizes.reshape(-1, *[1] * (x.ndim - 2))).to(x.device)
    expected = wide(numbers).double()
    own_eps = [float(eps) for key in _EPS if (eps := getattr(module, key, None)) is not None]
    for form in starmap(NormForm, product((0.0, 1.0), (False, True), own_eps[:1] or _PLAIN_EPS)):
        error = (observed.as_norm(name, form)(numbers) - expected).abs().amax(-1)
        if bool((error <= _FORM_ERROR * expected.abs().amax(-1)).all()):
            return form
    raise UnknownError(f"{kind} is no norm of a known form")
