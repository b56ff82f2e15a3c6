"""The page of a sweep: `report` (the page), `cells` (rows as results), `sections` (blocks)."""
