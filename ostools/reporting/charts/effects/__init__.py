"""Charts of what taking parts out, mitigations, positions, distances and layers do."""
