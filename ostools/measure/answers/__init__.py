"""Answers of a model: `answers` (greedy, batched), `probability` of the right line, `judging`
(right or wrong), `evaluate`, `counting` (Corollary 6.2), `prefilled` (prompts with the line begun).
"""
