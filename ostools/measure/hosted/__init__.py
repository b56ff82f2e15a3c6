"""Models that run elsewhere: answers read from a file, an endpoint that is asked, and the table that `evaluate` gives."""
