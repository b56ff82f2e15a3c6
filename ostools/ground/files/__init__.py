"""Reading the files that a user names: regular files alone, up to a stated size."""
