"""The report on a sweep: `report` (the page), `answers` and `profiles` (its sections), `charts`."""
