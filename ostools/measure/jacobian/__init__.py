"""d y_n / d v_i: `sensitivity` (the measurement), `one_linearisation` (from route to certificate), `linear` and
`routes` (products with the Jacobian, by formulas or by autograd), `exact` and `estimate` (their norms), `certificate`
(finite differences), `cost`, `memory`.
"""
