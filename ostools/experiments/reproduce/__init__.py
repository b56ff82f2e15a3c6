"""What the paper says, claim by claim, what of it is measured on a model, and how a claim is judged by that."""
