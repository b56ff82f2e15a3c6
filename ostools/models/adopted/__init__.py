"""A model that a user has in memory, checked as one that is loaded."""
