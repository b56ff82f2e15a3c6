"""What everybody may use, and what imports nothing of ostools. Nothing here imports torch.

`errors`: the one that a user can cause; `whole_numbers`: the lengths and seeds that a caller gives, `lengths` as users write
them; `memory`: how much is free, `chunks`: how much is computed at a time; `pooling` of long prompts; `words`: how sentences
write numbers.
"""
