"""What the numbers say, in sentences computed from them: also, and first of all, where they do not say what the theory says.

Every function takes a result and returns sentences of plain text. A measured number is called measured, a bound certified, the
paper's form the paper's, a prediction predicted. The thresholds behind the words stand in these files.
"""
