"""What is read off sensitivities and path sums: `profile` (which tokens matter), `compare` (bounds beside norms),
`looseness` (where a bound loses), `spectra` (products of patterns).
"""
