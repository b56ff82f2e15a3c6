"""What the numbers say, in sentences; a file a subject."""
