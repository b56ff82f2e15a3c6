"""Analysis of sensitivities and path sums: `profile` (which tokens matter), `compare` (bounds
beside norms).
"""
