"""The path sum on a model: `path_sum` (the measurement), `variants` (by name), `block_view` (a block as its formulas
need it), `certified`, `windowed` and `predicted` (each kind), `flow` (its edges).
"""
