"""The paper's lemmas as functions that read as their statements: each side of an equation, each bound, on numbers.
`softmax`: B.1, 4.1 / B.2, B.4. `stochastic`: B.6, B.7, 5.2 / B.8. `counting`: 6.1 / B.9, 6.2 / B.10. `windows`: exact
collapse where every layer has a window. `ostools.experiments.lemmas` checks a few numbers for `ostools reproduce`.
Source: Barbero et al. 2024 (arXiv 2406.04267), sections 4 to 6 and appendix B.
"""

from ostools.theory.lemmas import counting as counting
from ostools.theory.lemmas import softmax as softmax
from ostools.theory.lemmas import stochastic as stochastic
from ostools.theory.lemmas import windows as windows

__all__ = ["counting", "softmax", "stochastic", "windows"]
