"""The first section of a report: `summary` (verdicts and headlines of the sections), `overview` (small charts)."""
