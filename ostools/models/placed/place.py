"""A model whose weights lie in several places, and which computes on one device.

A weight that lies on that device is a tensor like any other. One that lies elsewhere is a `Recast`: each operation brings what
it reads to the device, uses it and drops it. Results are those of the model loaded whole, to the bit on a CPU.

accelerate's hooks do otherwise: a module's weights are empty (on torch's meta device), and are filled in while its `forward`
runs. Whatever reads a weight outside of it then finds nothing: TransformerLens refuses `W_O`, the hash of the weights and every
formula of the theorem raise, a view in float64 copies the hooks with the model. A map that accelerate's
`infer_auto_device_map` made is one that is understood here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ostools.ground.errors import InputError
from ostools.models.placed.device_map import DISK, Placed, place_of
from ostools.models.placed.mapped import MappedWeights, brought
from ostools.models.recast import Recast


def placeholders(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """For each weight NaN in its shape, which takes no memory: so that the model can be built before it is filled.

    Each has a place of its own in memory, by which `fill` knows it again under whatever name the model gives it.
    """
    holder_by_name = {}
    for name, weight in weights.items():
        integer_zero = None if weight.is_floating_point() else weight.new_zeros(())
        scalar = torch.full((), float("nan"), dtype=dtype) if integer_zero is None else integer_zero
        holder_by_name[name] = scalar.expand(weight.shape)
    return holder_by_name


@dataclass(frozen=True)
class Placing:
    """What a device map makes of the weights of a model: in which dtype, where it computes, and what lies where."""

    files: MappedWeights
    placed: Placed
    dtype: torch.dtype
    device: torch.device

    def weight(self, name: str, path: str) -> Tensor:
        """The weight of that name in the files, for the parameter at `path` of the model.

        Memory: what is not on disk; of what is, gains and biases, which are little and read all the time.
        """
        weight, place = self.files.by_name[name], place_of(path, self.placed) or DISK
        if place == str(self.device) or weight.ndim < 2:
            weight = brought(weight, self.dtype, self.device)
        else:
            if place != DISK:
                weight = brought(weight, self.dtype, torch.device(place))
            reading = partial(brought, dtype=self.dtype, device=self.device)
            weight = Recast(reading, (weight,), self.dtype, device=self.device, one_piece=True)  # pyright: ignore[reportCallIssue]
        self.files.let_go()
        return weight


def fill(
    module: nn.Module, holders: dict[str, Tensor], device: torch.device, weight: Callable[[str, str], Tensor]
) -> None:
    """Put `weight(name, path)` in the place of each placeholder in `held_tensors`, which `module` was built with.

    `name`: of the placeholder; `path`: of the parameter. Raises `InputError` for one that the libraries converted.
    """
    names = {holder.data_ptr(): name for name, holder in holders.items()}
    parameter_by_id: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.to(device)
    for path, parameter in list(module.named_parameters(remove_duplicate=False)):
        if id(parameter) not in parameter_by_id:
            stored = names.get(parameter.data_ptr())
            if stored is None:
                raise InputError(f"expected {path} as the file holds it, found it converted by transformers")
            parameter_by_id[id(parameter)] = nn.Parameter(weight(stored, path), requires_grad=False)
        owner, _, name = path.rpartition(".")
        module.get_submodule(owner)._parameters[name] = parameter_by_id[id(parameter)]
