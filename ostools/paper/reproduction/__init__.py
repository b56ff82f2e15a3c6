"""The paper reproduced on a model: a recipe, a directory of measured parts that a later run resumes, and one page of claims."""

from ostools import hooks  # noqa: F401 -- first: it keeps transformers' log level, which TransformerLens' import changes
