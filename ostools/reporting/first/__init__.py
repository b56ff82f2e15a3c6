"""The first screen of a report: `headlines` (sentences), `verdicts` (a strip), `glance` (three small charts), `screen` (all)."""
