"""d y_n / d v_i: `sensitivity` (the measurement), `linearisation_run` (of one prompt: linearise, measure, certify), `routes`
(products with the Jacobian, by formulas or by autograd), `norms` (exact or estimated), `certificate` (finite differences),
`memory`; `attribution` (parts of a logit that add up).
"""
