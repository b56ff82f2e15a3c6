"""Theorem 4.2: `collapse` (the measurement), `run` (one precision after the other), `prompt_sets` and `rendered_pairs`
(v and v*), `distances` (and their floors), `variation` (of the attention, beside them), `rows` (as a sweep stores them).
"""
