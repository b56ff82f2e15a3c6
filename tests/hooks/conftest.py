"""One tiny model of each family, and one prompt, for every test of the hooks."""

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from tests.checkpoints import TEXT_FAMILIES, tiny_model
from tests.sets import quick


@pytest.fixture(params=quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def model(request: pytest.FixtureRequest) -> TransformerBridge:
    return tiny_model(request.param, seed=1)


@pytest.fixture
def tokens() -> Int[Tensor, "batch pos"]:
    return torch.randint(10, 200, (2, 9), generator=torch.Generator().manual_seed(0))
