"""A model that a user has in memory: `adopt` takes it, `parts` says what it is made of and refuses
what nobody could load.
"""
