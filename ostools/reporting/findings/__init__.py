"""Functions from a result to sentences of plain text.

A measured number is called measured, a bound certified, the paper's form the paper's, a prediction
predicted. What the numbers do not show is said too. The thresholds stand in these files.
"""
