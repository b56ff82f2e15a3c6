"""What everybody may use, and what imports nothing of ostools: `errors` (the one that a user can cause), `lengths` as
users write them, `memory` (how much is free, how much is computed at a time), `pooling` of long prompts, `words` (how
sentences write numbers). Nothing here imports torch.
"""
