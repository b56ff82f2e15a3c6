"""The files of a checkpoint: where they are, what they must satisfy, and the Hugging Face model
that they make.
"""
