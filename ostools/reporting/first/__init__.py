"""The first screen of a report: `headlines` (sentences), `verdicts` (a strip), `glance` and `right` (small charts), `screen`
(all of it), and `two` (that of two models)."""
