"""Each lemma of the paper, run on numbers: what was computed, the figure, and what was required of it."""
