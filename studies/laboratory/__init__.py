"""Decoders that are equal but for one thing: positions, depth, window or precision (`python -m
studies.laboratory`).

`random_lab` runs decoders with random weights, by the measurements of `runs`. `config`, `prompts`,
`decoder` and `training` train decoders, `trained_lab` measures them before and after training, and
`summary` makes tables of that. `charts` draws both.
"""
