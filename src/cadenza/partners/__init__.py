"""Partners: frozen team-mates that the ego trains with and is judged against.

Start at:    `FrozenPartner` (the Protocol) and `load_partner` (spec in, partner out).
Promise:     a partner never learns and never reads the ego's parameters.
May import:  `core`, `learn`, `safety`, `comm`.  Must not import: `envs`, `aht`.
Adding one:  one file, one registration, then `pytest tests/contract/test_partners.py`.
"""

from typing import TYPE_CHECKING, Final

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.partners.interface import FrozenPartner, PartnerBase
    from cadenza.partners.registry import list_registered, load_partner, register_partner
    from cadenza.partners.scripted_heuristic import ScriptedHeuristicPartner
    from cadenza.partners.selection import select_zoo
    from cadenza.partners.spec import PartnerSpec

__all__ = [
    "FrozenPartner",
    "PartnerBase",
    "PartnerSpec",
    "ScriptedHeuristicPartner",
    "list_registered",
    "load_partner",
    "register_partner",
    "select_zoo",
]

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "FrozenPartner": "interface",
    "PartnerBase": "interface",
    "PartnerSpec": "spec",
    "ScriptedHeuristicPartner": "scripted_heuristic",
    "list_registered": "registry",
    "load_partner": "registry",
    "register_partner": "registry",
    "select_zoo": "selection",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
