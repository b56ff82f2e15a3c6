"""The path sum on a model: `path_sum` (the measurement), `variants` (by name), `block_view` (a block as its formulas
need it), `certified` and `windowed` (the bounds), `uniform_attention` (a shape), `belief` (what a form that is no bound is
worth on this prompt).
"""
