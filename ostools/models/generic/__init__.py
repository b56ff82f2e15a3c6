"""Models that no record of a family describes: `bridge`."""
