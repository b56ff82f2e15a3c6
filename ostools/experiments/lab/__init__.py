"""One decoder under every encoding, depth and precision: `lab` (the experiment), `runs` (its cells)."""
