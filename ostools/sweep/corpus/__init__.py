"""A measurement over a corpus of texts, as a sweep in the same store: `texts` (windows of texts
that are read from a file), `measures` (what is measured of each), `result` (the table of all),
`corpus` (the run).
"""
