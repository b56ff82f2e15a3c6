"""A weight that is made where it is read, without a second copy of it.

A `LazyCast` tensor stands for a function of stored numbers, such as a bfloat16 matrix cast to
float64, or one rounded to 8 bits. It holds the stored numbers themselves,
shared with whoever owns them. Each operation makes the numbers that it reads, and uses them once:
of an embedding the rows that were asked for, of a product with a large cast matrix in a CPU's
memory a part at a time, of anything else one whole matrix. The operation is the same one, on the
same numbers, that a cast copy of the model would run; a product in parts may round its sums
otherwise in the last bits. Parts of a cast are made in one place, which the thread keeps: so few at
a time that they stay in a CPU's caches, a pass takes as long as with weights that were cast before.

Backward passes read it the same way: what autograd keeps of a product is the `LazyCast`, and its
numbers are made again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from ostools.ground import InputError
from ostools.hooks import SIXTEEN_BITS

PART = 1 << 22
"""Bytes of a cast that one step of a product on a CPU makes at a time: so few stay in its caches.
"""
BLOCK = 3 << 23
"""Bytes of a weight in another dtype that a check of every number makes at a time."""
SMALL_WEIGHT = 1 << 20
"""Up to this many bytes a weight is cast once: together they are little, and making them at every
use takes time.
"""

_Tree = TypeVar("_Tree")
_aten = torch.ops.aten
# Views: what they make of the numbers, they make of the stored numbers.
_VIEWS = frozenset(
    {
        _aten.alias.default,
        _aten.detach.default,
        _aten.diagonal.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.squeeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unfold.default,
        _aten.unsqueeze.default,
        _aten.view.default,
    }
)
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default})
_SPLITS = frozenset({_aten.split.Tensor, _aten.split_with_sizes.default, _aten.unbind.int})
_PART_BY_PART = _VIEWS | _SPLITS | {_aten.embedding.default}


class LazyCast(Tensor):
    """Numbers that `read` makes of `parts`, element by element: all parts have the shape and the
    device of the tensor.
    """

    parts: tuple[Tensor, ...]
    read: Callable[..., Tensor]

    @staticmethod
    def __new__(
        cls, read: Callable[..., Tensor], parts: tuple[Tensor, ...], dtype: torch.dtype
    ) -> "LazyCast":
        like = parts[0]
        self = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=0,
            dtype=dtype,
            device=like.device,
        )
        self.parts, self.read = parts, read
        return self

    def dense(self) -> Tensor:
        """The numbers; those that an expanded view repeats are made once."""
        once = [
            slice(0, 1) if all(part.stride(axis) == 0 for part in self.parts) else slice(None)
            for axis in range(self.ndim)
        ]
        return self.read(*(part[tuple(once)] for part in self.parts)).expand(self.shape)

    def _product(self, function: Callable[..., Tensor], operands: Sequence[Tensor]) -> Tensor:
        """A product with a cast matrix, of which `PART` bytes are made at a time, in one place that
        the thread keeps.

        Measured: 330 M bfloat16 numbers as float32, 21 rows, one thread of an EPYC with 1 MiB of L2
        a core. 0.23 s in parts of 2 or 4 MiB, 0.35 s in parts of 24 MiB, 0.26 s by float32 weights,
        and 0.52 s to make those in fresh memory. A part is whole lines of what is stored: outputs,
        or inputs, whose products are added up. Not in 16 bits, where each partial sum would be
        rounded.
        """
        (stored,), (*bias, x) = self.parts, operands
        by_rows = stored.stride(0) >= stored.stride(1)
        adds_up = by_rows and self.dtype not in SIXTEEN_BITS
        lines = stored if adds_up else stored.T
        count = max(1, PART // max(1, lines.shape[1] * self.dtype.itemsize))
        room = _room(min(count, len(lines)) * lines.shape[1], self.dtype).view(-1, lines.shape[1])
        if len(lines) <= count:  # as it is stored: in 16 bits another layout may round otherwise
            matrix = stored if by_rows else stored.T
            numbers = room.view(matrix.shape).copy_(matrix)
            return function(*operands, numbers if by_rows else numbers.T)
        output = torch.empty((len(x), self.shape[1]), dtype=x.dtype)
        if adds_up:
            output.copy_(bias[0]) if bias else output.zero_()
        for start in range(0, len(lines), count):
            part = slice(start, start + count)
            numbers = room[: len(lines[part])].copy_(lines[part])
            if adds_up:
                output.addmm_(x[:, part], numbers)
            else:
                of_part = (_columns(operand, part) for operand in bias)
                output[:, part] = function(*of_part, x, numbers.T)
        return output

    @property
    def is_cast(self) -> bool:
        """Whether it stands for a cast, and nothing else, of one matrix in a CPU's memory."""
        is_plain = type(self.parts[0]) in (Tensor, nn.Parameter) and self.numel() > 0
        is_cast = getattr(self.read, "func", None) is Tensor.to
        return is_plain and is_cast and self.device.type == "cpu"

    @property
    def stored(self) -> Tensor:
        """Where the numbers are stored, of a view of a view too."""
        first = self.parts[0]
        return first.stored if isinstance(first, LazyCast) else first

    @property
    def data(self) -> "LazyCast":
        """Its numbers, without a gradient."""
        return self.detach()  # pyright: ignore[reportReturnType]

    @data.setter
    def data(self, value: Tensor) -> None:
        # torch's own setter would take the numbers, and nobody would read them.
        if value is not self:
            raise _refusal("data")

    def _map_parts(self, view: Callable[[Tensor], Tensor]) -> "LazyCast":
        return LazyCast(self.read, tuple(view(part) for part in self.parts), self.dtype)

    def _part_by_part(
        self, function: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> "LazyCast | Tensor | list[LazyCast]":
        """What a view, a split or a look-up of rows makes of these numbers, it makes of what is
        stored.
        """
        if function is _aten.embedding.default:
            ids = cast(Tensor, args[0])  # the rows that are asked for: no others are made
            rows = self._map_parts(lambda part: part.index_select(0, ids.flatten()))
            return rows.dense().view(*ids.shape, self.shape[-1])
        if function in _SPLITS:
            views = (function(part, *args, **kwargs) for part in self.parts)
            return [LazyCast(self.read, parts, self.dtype) for parts in zip(*views, strict=True)]
        return self._map_parts(lambda part: _viewed(function, part, *args, **kwargs))

    @classmethod
    def __torch_dispatch__(
        cls,
        function: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        first, last = (args[0], args[-1]) if args else (None, None)
        if function in _PART_BY_PART and isinstance(first, LazyCast):
            return first._part_by_part(function, args[1:], kwargs)
        if function in _PRODUCTS and isinstance(last, LazyCast) and last.is_cast and not kwargs:
            return last._product(function, cast(tuple[Tensor, ...], _dense(args[:-1])))
        # Operations write to their first argument, or to `out`.
        targets = tree_leaves((first, kwargs.get("out")))
        if function._schema.is_mutable and any(isinstance(it, LazyCast) for it in targets):
            raise _refusal(str(function))
        return function(*_dense(args), **_dense(kwargs))


def _columns(operand: Tensor, block: slice) -> Tensor:
    """The columns of a bias; of one that is the same in every column, its one."""
    return operand if operand.shape[-1] == 1 else operand[..., block]


_rooms = threading.local()


def _room(count: int, dtype: torch.dtype) -> Tensor:
    """So many numbers, which the same thread overwrites when it asks again."""
    room: Tensor | None = getattr(_rooms, "room", None)
    if room is None or room.numel() < count * dtype.itemsize:
        with torch.inference_mode(False):
            _rooms.room = room = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
    return room[: count * dtype.itemsize].view(dtype)


def _viewed(function: OpOverload, part: Tensor, *args: object, **kwargs: object) -> Tensor:
    """A part that repeats its numbers (a scale a row) is written out for a view that joins its
    axes.
    """
    try:
        return function(part, *args, **kwargs)
    except RuntimeError:
        if 0 not in part.stride():
            raise
        return function(part.contiguous(), *args, **kwargs)


def dense(x: Tensor) -> Tensor:
    """The tensor's numbers: made once, where they are read many times."""
    return x.dense() if isinstance(x, LazyCast) else x


def _dense(value: _Tree) -> _Tree:
    """The tuple or mapping with the numbers of every `LazyCast` in it."""
    return tree_map_only(LazyCast, dense, value)


def _refusal(what: str) -> InputError:
    return InputError(
        f"{what}: expected a weight of the model itself to write to, found one that is made where "
        "it is read (a view in another dtype, an int8 weight): load the model whole and in full "
        "precision, and write there"
    )
