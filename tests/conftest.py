"""One thread a worker (two torch threads on two busy cores are slower than one), and no deadlines: nothing is timed here."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
