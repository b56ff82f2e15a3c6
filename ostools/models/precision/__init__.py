"""In which numbers a model computes: its weights read in another dtype, or rounded, without a
second copy of them.
"""
