"""What a GGUF file says of itself: its header, its configuration, its tokenizer."""
