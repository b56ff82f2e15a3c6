"""The paper claim by claim, in its own words: what of it is measured on a model, and how a claim is
judged by that.
"""
