"""d y_n / d v_i: `sensitivity` (the measurement), `together` (prompts of one length), `one_linearisation` (linearise, measure,
certify), `linear` and `routes` (products with the Jacobian, by formulas or by autograd), `exact` and `estimate` (their norms,
and which of the two), `certificate` (finite differences), `memory`, `linearisations` (what each holds).
"""
