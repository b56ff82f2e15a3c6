"""Contributions of tokens to the answer: parts of a logit that add up to it."""
