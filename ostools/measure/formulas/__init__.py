"""One block as formulas: `weights` read off a model, `block` (what one pass keeps, and the parts of
each block's Jacobian), with a check against the model's own numbers.
"""
