"""Attention: `heat` maps, `cells` (what they share with the findings), `view` (heads to click through)."""
