"""The five linearisations of docs/theory.md 2, and rows g^T J_i of their Jacobians, by autograd, of
whatever model runs.

    J_i^(l) = d y_n / d v_i^(l)

One pass over the prompt starts at v^(0), with what a linearisation holds constant held by hooks
(`hooks.freeze.holding`). Its graph gives every v^(l), and serves several linearisations, one after
the other. A batch of cotangents goes back through it together: the prompt is there once, whatever
the number of rows. Of a long prompt the pass keeps no graph. Each block runs again when the rows
have come back to it: one block's graph at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import (
    InputError,
    Linearisation,
    Progress,
    TransformerBridge,
    tell,
)
from ostools.hooks.freeze import HeldParts, Holding, holding
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import (
    full_precision,
    no_logits,
    noted_calls,
    require_no_freeze,
    run_from,
    true_arithmetic,
)
from ostools.models.generic.choices import Choices, held_choices, noted_choices

FROZEN_PARTS: Mapping[str, HeldParts] = {
    "full": HeldParts(),
    "frozen": HeldParts(attention=True, norms=True),
    "frozen-attention": HeldParts(attention=True),
    "frozen-norm": HeldParts(norms=True),
    "detached": HeldParts(attention=True, norms=True, activations=True),
}
"""What each linearisation holds constant. Where it is all of it the network is linear in its
embeddings, but for its biases.
"""
DEFAULT_LINEARISATIONS: tuple[Linearisation, ...] = ("full", "frozen")
"""What is measured of a model whose blocks are known inside, where nothing is asked for."""
# Running from embeddings may round otherwise than running from tokens; freezing changes no value.
_SAME_Y = {torch.float32: 2e-5, torch.float64: 1e-10}


@contextmanager
def differentiated(
    model: TransformerBridge, mitigated: MitigatedPrompts
) -> Iterator[TransformerBridge]:
    """The model as its derivative is taken within the block: in float32 or float64 throughout,
    under the mitigation.

    Refuses, with `InputError`, the block of a freeze: each linearisation holds what it needs by
    itself.
    """
    if any(weight.is_inference() for weight in model.parameters()):
        raise InputError(
            f"{mitigated.what}: expected weights that autograd can follow, found some made within "
            "torch.inference_mode(): load the model outside of it"
        )
    work = full_precision(model, mitigated.what)
    with mitigated.acting(work), true_arithmetic(work):
        require_no_freeze(mitigated.what, work)
        yield work


@dataclass(frozen=True)
class Start:
    """Start of every linearisation of a prompt: v^(0), the last token's logits and y_n of the plain
    pass, and the experts chosen in it."""

    embedded: Float[Tensor, "pos d_model"]
    logits: Float[Tensor, "1 d_vocab"]
    y: Float[Tensor, " d_model"]
    choices: Choices | None = None

    @classmethod
    def of(cls, model: TransformerBridge, ids: Int[Tensor, " pos"]) -> "Start":
        """Cost: one forward pass. Raises `InputError` for logits that are not finite."""
        ids = ids.to(next(model.parameters()).device)
        with (
            torch.no_grad(),
            noted_choices(model, len(ids)) as choices,
            hooks.capture(model, "final_norm") as record,
        ):
            plain = model(ids[None], logits_to_keep=1)[0]
        if not bool(torch.isfinite(plain).all()):
            raise InputError(
                "the model's logits on this prompt are not finite; its weights or its dtype are "
                "broken"
            )
        with torch.no_grad():
            embedded = model.input_to_embed(ids[None])[0][0].detach()
        return cls(embedded, plain, record["final_norm"][0, -1], choices)


Cotangents = Float[Tensor, "row d_model"]
Tangents = Float[Tensor, "row place d_model"]


BlockStreams = tuple[
    Float[Tensor, "1 pos d_model"], Float[Tensor, "1 pos d_model"], Float[Tensor, "1 pos d_model"]
]
"""Of one block that ran again: v^(l) as it is handed over, v^(l) as edits leave it, and what the
block gives."""


class Linearised:
    """d y_n / d v_i^(l) of one prompt as a linear map, of the model under the edits that are
    active.

    `layers`: which l, in order, 0 for the embedded tokens up to L for what the last block leaves;
    `places`: all their tokens, layer by layer. `chunk`: so many rows go back through a graph at a
    time; None: all. `keeps_graph`: of the whole pass; else each block runs again, and the edits
    have to be active still. Where the map is taken, without a graph:
    `stream`, v^(l) at the lowest of these layers, as edited, and `y`. `holding`: what the block in
    which the prompt was linearised holds; nothing without one.
    """

    def __init__(
        self,
        model: TransformerBridge,
        embedded: Float[Tensor, "pos d_model"],
        layers: Sequence[int] = (0,),
        *,
        chunk: int | None = None,
        keeps_graph: bool = True,
        holding: Holding | None = None,
    ) -> None:
        self.model, self.holding = model, holding or Holding([HeldParts()])
        self._chunk, self._keeps_graph = chunk, keeps_graph
        self.pos, self.layers, self.n_layers = len(embedded), tuple(layers), int(model.cfg.n_layers)
        start = embedded.detach()[None].clone().requires_grad_(keeps_graph)
        with (
            torch.set_grad_enabled(keeps_graph),
            nullcontext([]) if keeps_graph else noted_calls(model) as self._calls,
            hooks.capture(
                model, "final_norm", "residual_pre", "residual_post", detach=False
            ) as record,
        ):
            run_from(model, start, logits_to_keep=no_logits(model))
        streams = {
            **record["residual_pre"],
            0: start,
            self.n_layers: record["residual_post"][self.n_layers - 1],
        }
        self._streams: list[Tensor] = [streams[layer] for layer in range(self.n_layers + 1)]
        self._y: Float[Tensor, " d_model"] = record["final_norm"][0, -1]
        self.stream: Float[Tensor, "pos d_model"] = self._streams[self.layers[0]][0].detach()
        self.y = self._y.detach()

    def release(self) -> None:
        """Let the graph go, and its memory: nothing can be pulled any more."""
        del self._streams, self._y
        self._calls.clear()

    def pull(self, cotangents: Cotangents, progress: Progress | None = None) -> Tangents:
        """g^T J_i for every row g and place i. In memory the places lie before the rows. The caller
        may write to it.
        """
        rows = cotangents.to(self._y)
        tangents = rows.new_empty(len(self.layers), self.pos, *rows.shape)
        step = self._chunk or max(1, len(rows))
        parts = [slice(start, start + step) for start in range(0, len(rows), step)]
        if self._keeps_graph:
            for index, part in enumerate(parts):
                gradients = vjp(
                    self._y, [self._streams[layer] for layer in self.layers], rows[part]
                )
                for tangent, gradient in zip(tangents, gradients, strict=True):
                    tangent[:, part] = gradient[:, 0].transpose(0, 1)
                tell(progress, index + 1, len(parts))
        else:
            self._pull_by_blocks(rows, parts, tangents, progress)
        return tangents.flatten(0, 1).transpose(0, 1)

    def push(self, fields: Tangents) -> Cotangents:
        """sum_i J_i t_i of each field t at the lowest layer: the derivative of g -> g^T J with
        respect to g, along t. Costs a pull of each.
        """
        cotangent, lowest = (
            torch.zeros_like(self._y, requires_grad=True),
            self._streams[self.layers[0]],
        )
        with torch.enable_grad():
            pulled = vjp(self._y, [lowest], cotangent[None], create_graph=True)[0][0, 0]
        parts = fields.to(pulled).split(self._chunk or max(1, len(fields)))
        return torch.cat([vjp(pulled, [cotangent], part)[0] for part in parts])

    def top(self, cotangents: Cotangents) -> Float[Tensor, "row pos d_model"]:
        """g^T d y_n / d v_i^(L): through the final norm, and what an edit there reads of other
        tokens.
        """
        last = self._streams[-1].detach().requires_grad_(True)
        with torch.enable_grad():
            y = self.model.ln_final(last)[0, -1]
        return vjp(y, [last], cotangents)[0][:, 0]

    def block(self, layer: int) -> BlockStreams:
        """Run one block again as it ran in the pass, with its graph."""
        args, kwargs = self._calls[layer]
        is_named = "hidden_states" in kwargs
        stream = cast(Tensor, kwargs["hidden_states"] if is_named else args[0])
        # Bloom's block 0 is called with what `run_from` replaces.
        entry = (self._streams[0] if layer == 0 else stream).detach().requires_grad_(True)
        if is_named:
            kwargs = kwargs | {"hidden_states": entry}
        else:
            args = (entry, *args[1:])
        with (
            torch.enable_grad(),
            hooks.capture(self.model, "residual_pre", layers=[layer], detach=False) as record,
        ):
            out = self.model.blocks[layer](*args, **kwargs)
        return entry, record["residual_pre"][layer], out if isinstance(out, Tensor) else out[0]

    def _pull_by_blocks(
        self,
        rows: Cotangents,
        parts: list[slice],
        tangents: Float[Tensor, "layer pos row d_model"],
        progress: Progress | None,
    ) -> None:
        places = {layer: index for index, layer in enumerate(self.layers)}
        lowest, steps = self.layers[0], count(1)
        carried = self.top(rows)
        if self.n_layers in places:
            tangents[places[self.n_layers]] = carried.transpose(0, 1)
        for layer in range(self.n_layers - 1, lowest - 1, -1):
            entry, stream, out = self.block(layer)
            for part in parts:
                to_entry, to_stream = vjp(out, [entry, stream], carried[part, None])
                carried[part] = to_entry[:, 0]
                if layer in places:
                    # v^(0) is what the pass starts from; of another v^(l) the one is meant that an
                    # edit leaves.
                    gradient = to_entry if layer == 0 else to_stream
                    tangents[places[layer], :, part] = gradient[:, 0].transpose(0, 1)
                tell(progress, next(steps), (self.n_layers - lowest) * len(parts))
            del entry, stream, out


def vjp(
    output: Tensor,
    inputs: Sequence[Tensor],
    rows: Float[Tensor, "row ..."],
    *,
    create_graph: bool = False,
) -> list[Tensor]:
    """g^T d output / d input of every row g, for each input: [row, *input]; 0 where the output does
    not depend on it.
    """
    gradients_of = partial(
        torch.autograd.grad,
        output,
        inputs,
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    with torch.enable_grad():
        if len(rows) == 1:
            gradients = [None if it is None else it[None] for it in gradients_of(rows[0])]
        else:
            gradients = gradients_of(rows, is_grads_batched=True)
    return [
        stream.new_zeros(len(rows), *stream.shape) if gradient is None else gradient
        for stream, gradient in zip(inputs, gradients, strict=True)
    ]


@contextmanager
def linearised(
    model: TransformerBridge,
    start: Start,
    linearisations: Sequence[str],
    layers: Sequence[int] = (0,),
    *,
    chunk: int | None = None,
    keeps_graph: bool = True,
) -> Iterator[Linearised]:
    """The model linearised at a prompt; it can be pulled within the block.

    One graph serves all `linearisations`: `linear.holding.followed` says whose derivative a pull
    gives, at first that of the first one. Raises `InputError` where the pass from v^(0), with what
    is held, has not the y_n of the plain one.
    """
    parts = [FROZEN_PARTS[name] for name in linearisations]
    with (
        held_choices(model, start.choices),
        holding(model, parts, keeps=keeps_graph) as values,
    ):
        linear = Linearised(
            model, start.embedded, layers, chunk=chunk, keeps_graph=keeps_graph, holding=values
        )
        difference = (start.y - linear.y).abs().amax() / start.y.abs().amax()
        if not float(difference) <= _SAME_Y[start.y.dtype]:
            raise InputError(
                f"the {' and '.join(linearisations)} forward pass changed y_n by "
                f"{float(difference):.2g} of their size; its Jacobian would mean nothing"
            )
        yield linear
