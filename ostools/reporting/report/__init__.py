"""The report on a model: `measuring` (what its sections show), `report` (one HTML file)."""
