"""The path sum on a model: `bounds` (the measurement), `variants` (by name), `certified` (a block as they read it, and
the bounds without a free constant), `belief` (what a form that is no bound is worth on this prompt).
"""
