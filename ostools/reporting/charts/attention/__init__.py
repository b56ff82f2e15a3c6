"""Attention: `heat` maps, `cells` (tokens, bins and heads in words), `view` (heads to click through)."""
