"""One decoder under every encoding, depth and precision: `lab` (the experiment on random weights), `runs` (its cells).

`trained`: models that were trained, measured as loaded ones are; `load` (one of them), `summary`; `remeasure` makes their table
again.
"""
