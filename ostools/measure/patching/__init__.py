"""Activation patching: `patching` (the measurement), `runs` (passes with activations of another run
in them).
"""
