"""Answers of a model: `answers` (greedy, batched), `probability` of the right line, `judging`
(right or wrong), `evaluate`, `prefilled` (prompts with the line begun).
"""
