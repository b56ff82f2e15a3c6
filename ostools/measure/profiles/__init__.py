"""What is read off sensitivities and path sums: `profile` (which tokens matter), `compare` (bounds beside norms),
`looseness` (where a bound becomes too large), `spectra` (products of patterns).
"""
