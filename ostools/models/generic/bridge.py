"""A model of no known family as a bridge: its blocks, its final norm and its output layer are found
by structure, and proven.

No module of it is computed anew: the blocks are Hugging Face's own, each with a hook point before
and behind it. So v^(l) and y can be read, changed and differentiated; inside a block patterns and
norms can, where they are proven (`inside`). The proof at load is one batched pass (`_prove`): the
residual stream before block l, put into a pass over OTHER tokens, gives the logits of the first.
Nothing else of the tokens reaches the logits, then, and J_i of this v^(l) is the whole derivative.

Cost: six tiny forward passes, one of them with a row for every block.
"""

import inspect
import math
import re
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from ostools import hooks
from ostools.ground import InputError, PreTrainedModel, original_model, refusal
from ostools.hooks.register import Order, attached
from ostools.hooks.sites import points
from ostools.models.generic.choices import Choices, held_choices, noted_choices, without_softmax
from ostools.models.generic.inside import look_inside
from ostools.models.generic.parts import (
    ROUNDING,
    ClosedBlock,
    GenericBridge,
    Observed,
    ScaledHead,
    at_each_call,
    class_and_name,
)
from ostools.models.lens import ArchitectureAdapter, EmbeddingBridge, TransformerBridgeConfig
from ostools.models.shape import Shape, soft_cap_of

_ROWS, _SMALL = 256, 1e-4  # rows of the output layer, and a share of y that no soft-cap bends
_SNAP = 1e-6  # a scale of the logits this close to a number of config.json is that number


def find_structure(
    module: PreTrainedModel, probe: Int[Tensor, "1 pos"], name: str
) -> dict[str, str]:
    """Find the paths of "embed", "blocks" (the list), "ln_final" and "unembed" by one forward pass:
    the blocks are the longest list of modules that run once each, in its order; the final norm is
    the module that reads what the last one gave. `InputError` where there are none.
    """
    paths = {id(part): path for path, part in module.named_modules()}
    embed, head = module.get_input_embeddings(), module.get_output_embeddings()
    if embed is None or head is None:
        missing = "no embedding" if embed is None else "no output layer"
        raise InputError(
            f"expected a token embedding and an output layer in {name}, found {missing}"
        )
    order, entering, outputs = _calls(module, probe)
    blocks = _block_paths(module, order, name)
    output, next_call = outputs[blocks[-1]], order.index(blocks[-1]) + 1
    leaving = output[0] if isinstance(output, tuple | list) else output  # the residual stream
    norms = [
        path
        for path, tensor in zip(order[next_call:], entering[next_call:], strict=True)
        if tensor is leaving and "norm" in class_and_name(module.get_submodule(path), path)
    ]
    if not norms or order.count(norms[0]) != 1:
        place = "one that runs elsewhere too" if norms else "none"
        raise InputError(
            f"expected a final norm behind the blocks of {name}, found {place}: y_n is its output"
        )
    return {
        "embed": paths[id(embed)],
        "blocks": blocks[0].rpartition(".")[0],
        "ln_final": norms[0],
        "unembed": paths[id(head)],
    }


def _block_paths(module: nn.Module, order: list[str], name: str) -> list[str]:
    """Paths of the longest list of modules that run once each, in its order."""
    chains = [
        [f"{path}.{index}" for index in range(len(part))]
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList)
    ]
    chains = [chain for chain in chains if chain and [it for it in order if it in chain] == chain]
    if not chains:
        raise InputError(
            "expected a list of blocks that run once each, one after the other, in "
            f"{name}, found none: which residual stream is v^(l) is not known"
        )
    return max(chains, key=len)


def _calls(
    module: nn.Module, probe: Int[Tensor, "1 pos"]
) -> tuple[list[str], list[object], dict[str, Any]]:
    """The paths of the modules in the order in which one pass calls them, the tensor that enters at
    each call, and what each module gave last.
    """
    order: list[str] = []
    entering: list[object] = []
    outputs: dict[str, Any] = {}

    def enter(path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        order.append(path)
        entering.append(args[0] if args else kwargs.get("hidden_states"))

    with (
        torch.no_grad(),
        at_each_call(dict(module.named_modules()), enter, outputs.__setitem__),
    ):
        module(probe, use_cache=False)
    return order, entering, outputs


def generic_bridge(
    module: PreTrainedModel,
    architecture: str,
    probe: Int[Tensor, "1 pos"],
    plain: Float[Tensor, "1 pos d_vocab"],
    name: str,
) -> GenericBridge:
    """The bridge, proven; `plain`: the module's logits of the probe. The module is changed in
    place. Raises `InputError` where v^(l) or y is not what the proof asks.
    """
    structure = find_structure(module, probe, name)
    weight = cast(Tensor, module.get_input_embeddings().weight)
    shape = Shape.of_config(module.config, weight.dtype, weight.device.type)
    cfg = TransformerBridgeConfig(
        d_model=shape.d_model,
        d_head=shape.d_head,
        n_layers=len(cast(nn.ModuleList, module.get_submodule(structure["blocks"]))),
        n_ctx=shape.context,
        n_heads=shape.n_heads,
        d_vocab=int(weight.shape[0]),
        architecture=f"{architecture}, by the generic route",
        model_name=name,
    )
    cfg.n_key_value_heads = shape.n_key_value_heads
    cfg.dtype, cfg.device = weight.dtype, str(weight.device)
    adapter = ArchitectureAdapter(cfg)
    kinds = {
        "embed": EmbeddingBridge,
        "blocks": ClosedBlock,
        "ln_final": Observed,
        "unembed": ScaledHead,
    }
    adapter.component_mapping = {part: kind(structure[part]) for part, kind in kinds.items()}
    head = module.get_output_embeddings()
    bridge = GenericBridge(module, adapter, None)
    # The Hugging Face model computes with its own output layer, as its scale asks.
    parent, _, last_name = structure["unembed"].rpartition(".")
    setattr(module.get_submodule(parent), last_name, head)
    bridge.eval().requires_grad_(False)
    _prove(bridge, probe, plain, name)
    bridge.unknown = look_inside(bridge, probe)
    bridge.eval()  # with the hook points that were put into it
    by_interface = module._can_set_attn_implementation() or bool(without_softmax(bridge))
    # Code that computes otherwise by the name of its attention: DeepSeek 3.2's leaves its selection
    # of keys to functions of other names than "eager" and "sdpa", which would have to know it.
    source = inspect.getsource(sys.modules[type(module).__module__])
    asks_for_names = re.search(r"_attn_implementation (not )?in \(", source) is not None
    bridge.asks_interface = by_interface and not asks_for_names
    return bridge


def _prove(
    bridge: GenericBridge,
    probe: Int[Tensor, "1 pos"],
    plain: Float[Tensor, "1 pos d_vocab"],
    name: str,
) -> None:
    """Everything that reaches the logits goes through every v^(l), and through y; and nothing of a
    later token does.
    """
    last = int(bridge.cfg.n_layers)
    sites = ("residual_pre", "residual_post", "final_norm")
    with (
        torch.no_grad(),
        hooks.capture(bridge, *sites, reduce=lambda tensor, _: tensor.clone()) as record,
        noted_choices(bridge, probe.shape[1], keep=True) as choices,
    ):
        logits = bridge(probe)
    pre, post, y = record["residual_pre"], record["residual_post"], record["final_norm"]
    _require_close(logits, plain, "the pass with hook points", name)
    for layer in range(1, last):
        if not torch.equal(post[layer - 1], pre[layer]):
            raise InputError(
                f"expected block {layer} of {name} to read what block {layer - 1} leaves, found "
                "another stream: which is v^(l) is not known"
            )
    _prove_streams(bridge, probe, logits, {**pre, last: post[last - 1]}, y, choices, name)
    _prove_causal(bridge, probe, logits, choices, name)
    _find_scale(bridge, probe, y, logits, name)


def _prove_causal(
    bridge: GenericBridge,
    probe: Int[Tensor, "1 pos"],
    logits: Float[Tensor, "1 pos d_vocab"],
    choices: Choices | None,
    name: str,
) -> None:
    """With another last token, logits and choices of experts before it stay the same."""
    changed_probe = probe.clone()
    changed_probe[:, -1] = probe[:, 0]
    what = "another last token"

    def same_choices(block: int, copies: Tensor, expected: Tensor) -> None:
        if len(expected) % probe.shape[1] == 0:  # a row or more for each token
            before, copied = (
                scores.unflatten(-2, (probe.shape[1], -1))[..., :-1, :, :]
                for scores in (expected, copies)
            )
            why = f"before it, in a choice of block {block}"
            _require_close(copied[0], before, what, name, why)

    with torch.no_grad(), held_choices(bridge, choices, same_choices):
        before_it = bridge(changed_probe)[:, :-1]
    _require_close(before_it, logits[:, :-1], what, name, "before it: it is not causal")


def _prove_streams(
    bridge: GenericBridge,
    probe: Int[Tensor, "1 pos"],
    logits: Float[Tensor, "1 pos d_vocab"],
    streams: dict[int, Tensor],
    y: Tensor,
    choices: Choices | None,
    name: str,
) -> None:
    """A pass over other tokens, a row for each l: row l is given v^(l) of the probe there, the last
    row y.

    Of a mixture of experts, the scores of each choice behind v^(l) are held against the probe's.
    Then the probe's choice is taken: rounding in a larger batch may change it.
    """
    last = int(bridge.cfg.n_layers)

    def replaced_row(row: int, stream: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda tensor: torch.cat([tensor[:row], stream, tensor[row + 1 :]])

    places = [
        (points(bridge, "residual_pre", [layer])[layer], replaced_row(layer, streams[layer]))
        for layer in range(last)
    ]
    places.append(
        (points(bridge, "residual_post", [last - 1])[last - 1], replaced_row(last, streams[last]))
    )
    places.append((points(bridge, "final_norm")[None], replaced_row(last + 1, y)))
    flipped = probe.flip(1).expand(last + 2, -1)  # another token at every position
    why = "with v^({}) put in: a choice of experts depends on a token past it"

    def same_choices(block: int, copies: Tensor, expected: Tensor) -> None:
        for layer in range(block + 1):
            _require_close(
                copies[layer], expected, "a pass over other tokens", name, why.format(layer)
            )

    edits = attached([(point, body, Order.EDIT) for point, body in places], kind="proof")
    with torch.no_grad(), edits, held_choices(bridge, choices, same_choices):
        rows = bridge(flipped)
    for layer, row in enumerate(rows):
        site = "y" if layer > last else f"v^({layer})"
        why = f"with that stream put in: y_n depends on a token past {site}"
        _require_close(row[None], logits, f"{site} of other tokens", name, why)


def _require_close(actual: Tensor, expected: Tensor, what: str, name: str, why: str = "") -> None:
    actual, expected = (tensor.masked_fill(tensor == -math.inf, 0) for tensor in (actual, expected))
    error = float((actual - expected).abs().max() / expected.abs().max())
    if not error <= ROUNDING[expected.dtype]:
        raise InputError(
            f"expected the logits of {name} to stay the same in {what}, found them {error:.2g} of "
            f"their size apart{f' {why}' if why else ''}; the generic route measures no such model"
        )


def _find_scale(
    bridge: GenericBridge, probe: Int[Tensor, "1 pos"], y: Tensor, logits: Tensor, name: str
) -> None:
    """The number by which the model multiplies what its output layer gives; its own head is held
    against its logits.

    It is read in float64 whatever the dtype (16 bits leave three of its digits): the model's own
    code behind y, with the first rows of the output layer. The first stream is so small that no
    soft-cap bends its logits; the second is y.
    """
    theirs = original_model(bridge)
    config = theirs.config.get_text_config()
    cap = soft_cap_of(config)

    def capped(linear: Tensor) -> Tensor:
        return linear if cap is None else cap * torch.tanh(linear / cap)

    head = cast(ScaledHead, bridge.unembed)
    rows = {part: weight[:_ROWS].double() for part, weight in head.theirs.named_parameters()}
    in_model = {f"{head.name}.{part}": weight for part, weight in rows.items()}
    streams = y.double() * y.new_tensor([_SMALL, 1.0], dtype=torch.float64)[:, None, None]
    # torch's own hook: an edit of ours may not change the dtype.
    in_place_of_y = bridge.ln_final.register_forward_hook(lambda *_: streams)
    what = f"logits of {name} that are its output layer's of y, times a number"
    with torch.no_grad(), in_place_of_y, refusal(what):
        bare = functional_call(head.theirs, rows, (streams,))
        exact = functional_call(
            theirs, in_model, (probe.expand(2, -1),), {"use_cache": False}, tie_weights=False
        ).logits
        small = exact[0].double() if cap is None else cap * torch.atanh(exact[0].double() / cap)
        scale = float((bare[0] * small).sum() / bare[0].square().sum())
        settings = config.to_dict().values()
        numbers = [float(value) for value in settings if isinstance(value, int | float) and value]
        candidates = [1.0, *numbers, *(1 / number for number in numbers)]
        nearest = min(candidates, key=lambda value: abs(value - scale))
        head._scale = nearest if abs(nearest - scale) <= _SNAP * abs(scale) else scale
        own_logits = capped(head(y))
    _require_close(capped(head._scale * bare), exact, "its output layer alone", name)
    _require_close(own_logits, logits.to(own_logits.dtype), "its output layer alone", name)
