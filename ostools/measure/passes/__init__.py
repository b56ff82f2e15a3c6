"""Forward passes, many at once and in every precision: `batches` and `trees` (prompts that share a
beginning), `last_tokens` (of all prompts in one pass), `precisions` (by name, what each one
rounds), `contexts` (what a pass runs in), `output` (what is differentiated)."""
