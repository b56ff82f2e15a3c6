"""One block as formulas: `weights` read off a model, `scores` and their derivatives, with a check
against the model's own, `block` (its Jacobian's parts), `forward` (what one pass keeps).
"""
