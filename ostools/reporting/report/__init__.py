"""The report on a model: `report` (what is measured, in one HTML file), `rendering` (the page)."""

from ostools import hooks  # noqa: F401 -- first: it keeps transformers' log level, which TransformerLens' import changes
