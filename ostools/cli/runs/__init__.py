"""The commands about whole runs: `report` (of everything, or of a sweep), `run` (a sweep), `results` (of one) and
`corpus` (one measurement over many texts)."""
