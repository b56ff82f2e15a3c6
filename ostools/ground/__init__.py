"""What everybody may use. It does not import the rest of ostools, and imports torch only when it is
needed.

`errors`: the one that a user can cause. `arguments`: those of a call, held against its annotations.
`whole_numbers`: lengths, seeds and counts, also as users write them. `names`: those of a list.
`progress`: how a long run is told. `memory`: how much is free. `out_of_memory`: how much is
computed at a time, and less of it where memory ran out. `pooling`: long prompts in few cells.
`words`: how sentences write numbers.
"""
