"""What makes docs/findings/behaviour.md; `python -m scripts.behaviour`."""
