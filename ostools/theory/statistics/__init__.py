"""Statistics of samples: `intervals` (of means, shares, correlations), `estimates` (norms from random cotangents), `fits` (the law
by which a distance falls).
"""
