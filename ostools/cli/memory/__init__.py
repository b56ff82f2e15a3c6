"""What a command may take: the memory of its largest step, told and refused before a model is loaded, and its time."""
