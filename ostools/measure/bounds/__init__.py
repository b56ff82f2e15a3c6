"""The path sum on a model: `bounds` (the measurement), `variants` (by name), `block_view` (a block as its formulas
need it), `certified` and `windowed` (the bounds), `belief` (what a form that is no bound is worth on this prompt).
"""
