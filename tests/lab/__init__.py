"""The trained laboratory: its decoder, its training, its measurements."""
