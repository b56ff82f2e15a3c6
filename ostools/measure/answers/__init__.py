"""What a model answers: `answers` (greedy, batched), `probability` of the right line, `judging` (right or wrong),
`behaviour` and its `behaviour_summary`, `counting` (Corollary 6.2), `acted` (whether a mitigation changed anything).
"""
