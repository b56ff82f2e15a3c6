"""Training of the embedded models: recipes, data, the loop, and what was trained."""
