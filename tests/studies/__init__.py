"""The studies: their models, their training, and the stored table; all slow."""
