"""What is taken out, and what that does: `ablation` (the experiment), `targets` (heads, edges, layers), `questions`
(asked of each), `effects` (predicted to first order).
"""
