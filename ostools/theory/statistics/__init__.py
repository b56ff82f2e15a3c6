"""Statistics of samples: `bootstrap` (means over seeds), `estimates` (norms from random cotangents),
`fits` (by which law a distance falls), `intervals` (of a share), `pareto` (fronts).
"""
