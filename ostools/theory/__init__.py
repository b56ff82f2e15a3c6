"""The paper's mathematics as pure tensor functions: without a model, without reading or writing files.

`paths`: Theorem 5.1 as a product of matrices.
`operators`, `edges`: norms of heads, MLPs and pairs of tokens. `distances`: Theorem 4.2's distances, and the units of a dtype.
`profiles`: shares, and the test for a U. `spectra`: Lemma B.6, B.7, Proposition 5.2. `lemmas`: the others, as functions that
read as their statements. `decoder`: one decoder in pure torch. `positions`: its positions. `fits`: the law by which a distance
falls. `bootstrap`: the interval of a mean over seeds. `intervals`: those of a share of right answers, and of a rank
correlation. `deletion`: curves of tokens taken out. `estimates`: norms from random cotangents. `pareto`: fronts.
"""

from ostools.theory import decoder as decoder
from ostools.theory import deletion as deletion
from ostools.theory import distances as distances
from ostools.theory import lemmas as lemmas
from ostools.theory import positions as positions
from ostools.theory import profiles as profiles
from ostools.theory import spectra as spectra
from ostools.theory.bounds import edges as edges
from ostools.theory.bounds import operators as operators
from ostools.theory.bounds import paths as paths
from ostools.theory.statistics import bootstrap as bootstrap
from ostools.theory.statistics import estimates as estimates
from ostools.theory.statistics import fits as fits
from ostools.theory.statistics import intervals as intervals
from ostools.theory.statistics import pareto as pareto

__all__ = [
    "bootstrap",
    "decoder",
    "deletion",
    "distances",
    "edges",
    "estimates",
    "fits",
    "intervals",
    "lemmas",
    "operators",
    "pareto",
    "paths",
    "positions",
    "profiles",
    "spectra",
]
