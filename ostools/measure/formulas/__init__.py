"""One block as formulas: `weights` read off a model, `scores` and their derivatives (and the check that
what is read is what the model computes), `block` (its Jacobian's parts), `forward` (what one pass
keeps).
"""
