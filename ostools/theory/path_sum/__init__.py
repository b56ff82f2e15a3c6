"""Theorem 5.1 as products of matrices: `paths` (the paper's forms), `edges` and `operators` (norms of heads and MLPs,
pair by pair), `second_moment` and `live_moments` (the sum that predicts).
"""
