"""d y_n / d v_i: `sensitivity` (the measurement), `prompt_batches` (prompts of one length),
`linearisation_run` (linearise, measure, certify), `linearised` and `routes` (products with the
Jacobian, by formulas or by autograd), `norms` (exact or estimated), `certificate` (finite
differences), `memory`.
"""
