"""The page of a sweep: `report` (the page), `sections` (blocks of stored results)."""
