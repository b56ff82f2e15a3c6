"""d y_n / d v_i: `sensitivity` (the measurement), `linearise` (one pass, and rows of its Jacobians
by autograd), `linearisation_run` (of one prompt: linearise, measure, certify), `norms` (exact or
estimated), `certificate` (finite differences), `hops`, `memory`; `attribution` (parts of a logit
that add up).
"""
