"""Answers of a model: `answers` (greedy, batched), `probability` of the right line, `judging` (right or wrong),
`evaluate`, `counting` (Corollary 6.2), `effect_status` (whether a mitigation changed anything).
"""
