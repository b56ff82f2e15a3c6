"""A measurement over a corpus of texts: `windows` (of texts that are read from a file), `measures` (what is measured
of each, and what it costs), `result` (the table of all, by relative position), `corpus` (the run, kept in a store of cells).
"""
