"""Read answers from a file, ask an endpoint for them, and make the table that `evaluate` gives."""
