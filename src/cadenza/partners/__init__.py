"""Partners: frozen team-mates that the ego trains with and is judged against.

Start at:    `FrozenPartner` (the Protocol) and `load_partner` (spec in, partner out).
Promise:     a partner never learns and never reads the ego's parameters.
May import:  `core`, `learn`, `safety`, `comm`.  Must not import: `envs`, `aht`.
Adding one:  one file, one registration, then `pytest tests/contract/test_partners.py`.
"""

from typing import TYPE_CHECKING, Final

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.partners.any_task import ExploratoryStaticPartnerOverride, PartnerAblatedZero
    from cadenza.partners.chunked import ChunkedPolicyPartner
    from cadenza.partners.frozen import FrozenHARLPartner, FrozenMAPPOPartner, OnnxPartner
    from cadenza.partners.interface import FrozenPartner, PartnerBase
    from cadenza.partners.mixture import PartnerMixture
    from cadenza.partners.openvla import OpenVLAPartner
    from cadenza.partners.registry import list_registered, load_partner, register_partner
    from cadenza.partners.remote import CrossFormerPartner, LeRobotPartner
    from cadenza.partners.scripted_heuristic import ScriptedHeuristicPartner
    from cadenza.partners.selection import select_zoo
    from cadenza.partners.spec import PartnerSpec, make_phase0_draft_zoo

__all__ = [
    "ChunkedPolicyPartner",
    "CrossFormerPartner",
    "ExploratoryStaticPartnerOverride",
    "FrozenHARLPartner",
    "FrozenMAPPOPartner",
    "FrozenPartner",
    "LeRobotPartner",
    "OnnxPartner",
    "OpenVLAPartner",
    "PartnerAblatedZero",
    "PartnerBase",
    "PartnerMixture",
    "PartnerSpec",
    "ScriptedHeuristicPartner",
    "list_registered",
    "load_partner",
    "make_phase0_draft_zoo",
    "register_partner",
    "select_zoo",
]

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ChunkedPolicyPartner": "chunked",
    "CrossFormerPartner": "remote",
    "ExploratoryStaticPartnerOverride": "any_task",
    "FrozenHARLPartner": "frozen",
    "FrozenMAPPOPartner": "frozen",
    "FrozenPartner": "interface",
    "LeRobotPartner": "remote",
    "OnnxPartner": "frozen",
    "OpenVLAPartner": "openvla",
    "PartnerAblatedZero": "any_task",
    "PartnerBase": "interface",
    "PartnerMixture": "mixture",
    "PartnerSpec": "spec",
    "ScriptedHeuristicPartner": "scripted_heuristic",
    "list_registered": "registry",
    "load_partner": "registry",
    "make_phase0_draft_zoo": "spec",
    "register_partner": "registry",
    "select_zoo": "selection",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
