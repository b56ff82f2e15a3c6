"""The page of a sweep: `report` (the page), `cells` (its rows as results), `sections` and `bounds` (a block for each),
`conditions` (models and mitigations side by side on the first screen)."""
