"""What everybody may use. It does not import the rest of ostools, and imports torch only when it is
needed.

`errors`: the one that a user can cause. `arguments`: those of a call, held against its annotations.
`whole_numbers`: lengths, seeds and counts, also as users write them. `names`: those of a list.
`progress`: how a long run is told. `memory`: how much is free. `out_of_memory`: how much is
computed at a time, and less of it where memory ran out. `pooling`: long prompts in few cells.
`words`: how sentences write numbers.
"""

from ostools.ground.errors import InputError, short_repr
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Position, checked_list, checked_name, distinct
from ostools.ground.progress import Progress, part_of, tell, with_progress
from ostools.ground.whole_numbers import (
    Count,
    Seed,
    checked_lengths,
    checked_seeds,
    is_whole,
    whole_number,
    whole_numbers,
)

__all__ = [
    "Count",
    "InputError",
    "Position",
    "Progress",
    "Seed",
    "TransformerBridge",
    "checked_lengths",
    "checked_list",
    "checked_name",
    "checked_seeds",
    "distinct",
    "is_whole",
    "part_of",
    "short_repr",
    "tell",
    "whole_number",
    "whole_numbers",
    "with_progress",
]
