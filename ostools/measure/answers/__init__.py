"""Answers of a model: `answers` (greedy, batched), `probability` of the right line, `judging` (right or wrong),
`evaluate`, `counting` (Corollary 6.2), `elicitation` (how an answer is asked for), `prefilled` (prompts with the line begun).
"""
