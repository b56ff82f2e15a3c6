"""Every call of a tokenizer and of a chat template, and what such a call may not do."""
