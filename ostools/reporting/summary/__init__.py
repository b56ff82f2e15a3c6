"""The first section of a report: `summary` (verdicts and headlines), `overview` (small charts)."""
