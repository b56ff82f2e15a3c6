"""Charts of the experiments: the paper's figures and claims, `study` (mitigations, windows), `decay` (laws of length)."""
