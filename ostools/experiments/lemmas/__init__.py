"""The paper's lemmas run on numbers: `theory` (all of them), `check` (one outcome), `softmax`, `stochastic`,
`decoders` (by subject).
"""
