"""The trained laboratory: `config` (what decides a model), `prompts` (what it is asked), `batches` (its training prompts),
`decoder`, `loop` (its training), `grid` (the cells).
"""
