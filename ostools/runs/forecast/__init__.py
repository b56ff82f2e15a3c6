"""What a sweep will take: `forecast` (of each cell), `prompts` (how long a cell's are, by its tokenizer alone)."""
