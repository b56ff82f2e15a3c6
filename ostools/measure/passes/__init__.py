"""Forward passes, many at once and in every precision: `batches` (which prompts go together),
`last_tokens` (prompts that share prefixes), `precisions`, `output`, `contexts`.
"""
