"""Charts of the paper's figures, its lemmas and the laboratory."""
