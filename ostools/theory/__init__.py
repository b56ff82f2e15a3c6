"""The paper's mathematics as pure tensor functions: no model, no I/O.

`paths`: Theorem 5.1 as a product of matrices. `second_moment`: the path sum that predicts. `operators`: norms, traces and inner
products of heads and MLPs. `distances`: Theorem 4.2's distances and the units of a dtype.
"""

from ostools.theory import distances as distances
from ostools.theory import operators as operators
from ostools.theory import paths as paths
from ostools.theory import second_moment as second_moment

__all__ = ["distances", "operators", "paths", "second_moment"]
