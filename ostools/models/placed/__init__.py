"""Weights that lie elsewhere than where they are computed with: on disk, in the machine's memory, on another device."""
