"""Charts of the paper's figures."""
