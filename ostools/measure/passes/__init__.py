"""Forward passes, many at once and in every precision: `batches` and `trees` (prompts that share a beginning),
`last_tokens` (of all prompts in one pass), `precisions` (by name, what each one rounds), `arithmetic` (true float32),
`sampling` (the next token).
"""
