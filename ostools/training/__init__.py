"""Small models, made here: the recipe of the embedded one, its data, its training (`python -m
ostools.training.train`), its card.
"""
