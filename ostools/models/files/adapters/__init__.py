"""A LoRA as PEFT stores it: its settings, and what it makes of the weights of its base model."""
