"""Training of the embedded models: `python -m studies.training --recipe embedded-short --out DIR`.

`recipe` decides a model, `corpus` (its text and tokenizer) and `examples` make its data, `loop`
trains it, `evaluate` measures it, and `card` writes what was done.
"""
