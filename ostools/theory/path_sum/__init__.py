"""Theorem 5.1 as products of matrices: `paths` (the paper's forms), `cesaro` (uniform attention in closed form), `edges` and
`operators` (norms of heads and MLPs, pair by pair), and their certificates.
"""
