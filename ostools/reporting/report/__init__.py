"""The report on a model: `report` (what is measured, in one HTML file), `rendering` (the page)."""
