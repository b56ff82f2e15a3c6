"""The first screen of a report: `headlines` (sentences), `verdicts` (a strip), `glance` (small charts), `screen` (all)."""
