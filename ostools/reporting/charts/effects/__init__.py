"""Charts of what taking parts out, mitigations and positions do."""
