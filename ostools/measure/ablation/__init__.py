"""Ablations: `ablation` (the measurement), `targets` (parts), `questions` (prompts), `effects`
(first order).
"""
