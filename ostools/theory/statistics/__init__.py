"""Statistics of samples: `intervals` (of means, shares, correlations), `paired` (two treatments of
the same questions), `heaping` (answers at round numbers), `separation` (of right answers from wrong
ones), `estimates` (norms from random cotangents), `fits` (laws of decay).
"""
