"""Ablations: `ablation` (the measurement), `targets` (parts), `questions` (prompts, measures)."""
