"""The path sum on a model: `bounds` (the measurement), `variants` (by name, and what one that is no
bound is worth on this prompt), `certified` (a block as they read it, and the bounds without a free
constant).
"""
