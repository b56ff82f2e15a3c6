"""Charts of the paper's figures and claims: `figures`, `figure5`, `decay` (laws of length),
`positions`, `windows`.
"""
