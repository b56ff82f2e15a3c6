"""Statistics of samples: `intervals` (of means, shares, correlations), `estimates` (norms from random cotangents), `fits` (laws
of decay).
"""
