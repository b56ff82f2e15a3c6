"""What everybody may use. It does not import the rest of ostools, and imports torch only when it is
needed.

`errors`: the one that a user can cause. `arguments`: those of a call, held against its annotations.
`whole_numbers`: lengths, seeds and counts, also as users write them. `names`: those of a list.
`progress`: how a long run is told. `memory`: how much is free, and how much is computed at a
time: less where it ran out. `pooling`: long prompts in few cells.
`words`: how sentences write numbers.
"""

from ostools.ground.arguments import (
    Count,
    Lengths,
    Seed,
    checked_arguments,
    checked_lengths,
    checked_seeds,
    is_whole,
    parse_lengths,
    whole_number,
    whole_numbers,
)
from ostools.ground.errors import (
    OF_A_LEFT_HOOK,
    InputError,
    InsufficientMemoryError,
    NonFiniteError,
    in_words,
    refusal,
    short_repr,
    unknown_name,
)
from ostools.ground.lens import (
    Conv1D,
    HookPoint,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TransformerBridge,
    original_model,
)
from ostools.ground.names import Position, checked_name, distinct
from ostools.ground.progress import Progress, part_of, tell, with_progress

__all__ = [
    "OF_A_LEFT_HOOK",
    "Conv1D",
    "Count",
    "HookPoint",
    "InputError",
    "InsufficientMemoryError",
    "Lengths",
    "NonFiniteError",
    "Position",
    "PreTrainedConfig",
    "PreTrainedModel",
    "PreTrainedTokenizerBase",
    "Progress",
    "Seed",
    "TransformerBridge",
    "checked_arguments",
    "checked_lengths",
    "checked_name",
    "checked_seeds",
    "distinct",
    "in_words",
    "is_whole",
    "original_model",
    "parse_lengths",
    "part_of",
    "refusal",
    "short_repr",
    "tell",
    "unknown_name",
    "whole_number",
    "whole_numbers",
    "with_progress",
]
