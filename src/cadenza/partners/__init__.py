"""Partners: frozen team-mates that the ego trains with and is judged against.

Start at:    `FrozenPartner` (the Protocol) and `load_partner` (spec in, partner out).
Promise:     a partner never learns and never reads the ego's parameters.
May import:  `core`, `learn`, `safety`, `comm`.  Must not import: `envs`, `aht`.
Adding one:  one file, one registration, then `pytest tests/contract/test_partners.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cadenza.partners.interface import FrozenPartner, PartnerBase
    from cadenza.partners.registry import list_registered, load_partner, register_partner
    from cadenza.partners.scripted_heuristic import ScriptedHeuristicPartner
    from cadenza.partners.spec import PartnerSpec

__all__ = [
    "FrozenPartner",
    "PartnerBase",
    "PartnerSpec",
    "ScriptedHeuristicPartner",
    "list_registered",
    "load_partner",
    "register_partner",
]

_HOMES: Final = {
    "FrozenPartner": "interface",
    "PartnerBase": "interface",
    "PartnerSpec": "spec",
    "ScriptedHeuristicPartner": "scripted_heuristic",
    "list_registered": "registry",
    "load_partner": "registry",
    "register_partner": "registry",
}


def __getattr__(name: str) -> Any:
    """Import a promised short name when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
