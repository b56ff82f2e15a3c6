"""Activation patching of two real models against PyTorch's hooks on transformers' own models of the
same weights.
"""

from typing import Any

import pytest
import torch

import ostools as ost
from tests.real.conftest import Real
from tests.real.plain_loop import patched_logits

pytestmark = pytest.mark.slow
TEXTS = ("The capital of Germany is the city of", "The capital of France is the city of")
PLACES = {"residual": 4, "heads": 2, "edges": 4}


@pytest.mark.parametrize("what", PLACES)
def test_a_patched_run_is_that_of_hooks_on_transformers(real: Real, what: Any) -> None:
    layer = 2 * int(real.model.cfg.n_layers) // 3
    prompts = [ost.encode(real.model, text) for text in TEXTS]
    place = PLACES[what] % len(prompts[0].ids)
    options: dict[str, Any] = {} if what == "heads" else {"positions": [place]}
    result = ost.patch(
        real.model,
        *prompts,
        what=what,
        layers=[layer],
        logit=(" Berlin", " Paris"),
        first_order=False,
        **options,
    )
    rows: Any = result.frame.query("direction != 'noising' and quantity == 'logit_difference'")
    row = rows.iloc[place if what == "heads" else 0]
    clean, corrupt = (prompt.ids.tolist() for prompt in prompts)
    logits = patched_logits(real.plain(torch.float32), clean, corrupt, what, layer, place)
    berlin, paris = result.provenance.parameters["logit_ids"]
    assert row["effect"] != 0
    assert row["patched"] == pytest.approx(float(logits[berlin] - logits[paris]), abs=2e-3)
