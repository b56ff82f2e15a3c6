"""Charts of the paper's figures and its lemmas."""
