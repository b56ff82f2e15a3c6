"""Theorem 5.1 as products of matrices: `paths` (the paper's forms and the certified one), `edges` and `operators` (norms of
heads, MLPs and pairs of tokens).
"""
