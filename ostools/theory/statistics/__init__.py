"""Statistics of samples: `intervals` (of means, shares and correlations), `estimates` (norms from random cotangents),
`fits` (by which law a distance falls), `pareto` (fronts).
"""
