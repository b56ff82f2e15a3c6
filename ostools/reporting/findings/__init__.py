"""Functions from a result to at most `MOST` sentences: a number, its unit, its interval, what it is compared with.

A measured number is called measured, a bound certified, the paper's form the paper's, a prediction predicted. What a result
shows beyond these sentences stands in its tables; what it means stands in the docs.
"""

MOST = 5
