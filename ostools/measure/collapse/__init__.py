"""Theorem 4.2: `collapse` (the measurement), `run` (one precision after the other), `prompt_sets`
(v and v*), `distances` (and their floors), `verdicts` (where a pair is hidden), `result`,
`variation` (of the attention, beside the distances).
"""
