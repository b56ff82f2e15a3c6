"""Timings side by side, against what a user would otherwise write. `make bench` runs all of them."""
