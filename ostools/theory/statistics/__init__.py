"""Statistics of samples: `intervals` (of means, shares, correlations), `paired` (two treatments of
the same questions), `heaping` (answers at round numbers), `estimates` (norms from random
cotangents), `fits` (laws of decay).
"""
