"""The report on a model: `measuring` (what its sections show), `rendering` (the page), `report` (one HTML file)."""
