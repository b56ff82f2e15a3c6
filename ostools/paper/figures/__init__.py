"""The paper's figures by number: `answering` (2), `counting` (3, 4, 6, 7), `figure5`, `synthetic` (8, 9)."""
