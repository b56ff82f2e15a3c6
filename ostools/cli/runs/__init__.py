"""The commands about whole runs: `report` (of everything, or of a sweep), `run` (a sweep) and `results` (of one)."""
