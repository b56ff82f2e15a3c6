"""Things that may help: each a prompt rewrite, a change of the forward pass, or both, with a proof that it acted."""

from mitigations.base import Mitigation as Mitigation
from mitigations.base import MitigationError as MitigationError
from mitigations.base import insert as insert
from mitigations.prompts import Hint as Hint
from mitigations.prompts import Separator as Separator

__all__ = ["Hint", "Mitigation", "MitigationError", "Separator", "insert"]
