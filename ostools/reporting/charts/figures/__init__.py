"""Charts of the paper's figures and the laboratory."""
