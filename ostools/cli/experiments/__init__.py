"""The commands that ask a question by many measurements: `repeats`, `study`, `windows`, `ablate`, `retrieval`, the paper's
`figure`s.
"""
