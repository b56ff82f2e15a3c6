"""The trained laboratory: `config` (what decides a model), `prompts` (what it is asked), `decoder`, `loop` (its training),
`grid` (the cells).
"""
