"""A measurement over a corpus of texts: `texts` (read from a file), `windows` (drawn from them), `measures` (what is measured
of each, and what it costs), `result` (the table of all, by relative position), `corpus` (the run, kept in a store of cells).
"""
