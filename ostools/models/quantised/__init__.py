"""Checkpoints with weights in few bits, read as the weights that they stand for."""
