"""The paper's mathematics as pure tensor functions: without a model, without reading or writing
files.

`bounds`: Theorem 5.1 as a product of matrices, with norms of heads, MLPs and pairs of tokens.
`distances`: Theorem 4.2's distances, the units of a dtype, the lengths at which it hides a pair,
and how alike the tokens of a text are. `profiles`: shares, the test for a U, and profiles of many
texts. `lemmas`: the lemmas and propositions, as functions that read as their statements. `decoder`:
one decoder in pure torch. `positions`: its positions. `fits`: the law by which a distance falls.
`intervals`: of a mean over seeds, of a share of right answers, of a rank correlation. `estimates`:
norms from random cotangents.
"""

from ostools.theory import decoder as decoder
from ostools.theory import distances as distances
from ostools.theory import lemmas as lemmas
from ostools.theory import path_sum as bounds
from ostools.theory import positions as positions
from ostools.theory import profiles as profiles
from ostools.theory.statistics import estimates as estimates
from ostools.theory.statistics import fits as fits
from ostools.theory.statistics import intervals as intervals

__all__ = [
    "bounds",
    "decoder",
    "distances",
    "estimates",
    "fits",
    "intervals",
    "lemmas",
    "positions",
    "profiles",
]
