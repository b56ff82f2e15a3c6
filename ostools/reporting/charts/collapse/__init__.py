"""Charts of collapse: `curves`, `precision`, `repeats`, `counting`."""
