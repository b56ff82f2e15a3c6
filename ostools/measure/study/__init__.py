"""Mitigations: `study` (against none), `arms` (each measured), `verdicts` (effects in words)."""
