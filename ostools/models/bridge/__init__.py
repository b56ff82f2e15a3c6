"""A Hugging Face model behind hooks that act."""
