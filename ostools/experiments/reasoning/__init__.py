"""Sensitivity along a chain of thought: the sequence that is measured (`written`), and what the answer feels of it."""
