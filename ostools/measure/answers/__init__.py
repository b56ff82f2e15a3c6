"""What a model answers: `answers` (greedy, batched), `probability` of the right line, `judging` (right or wrong),
`behaviour`, `counting` (Corollary 6.2), `acted` (whether a mitigation changed anything).
"""
