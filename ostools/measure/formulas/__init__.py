"""One block as formulas: `weights` read off a model, `scores` and their derivatives, `block` (its Jacobian's parts),
`forward` (what one pass keeps), `checks`.
"""
