"""Partners: frozen team-mates that the ego trains with and is judged against.

Start at:    `FrozenPartner` (the Protocol) and `load_partner` (spec in, partner out).
Promise:     a partner never learns and never reads the ego's parameters.
May import:  `core`, `learn`, `safety`, `comm`.  Must not import: `envs`, `aht`.
Adding one:  one file, one registration, then `pytest tests/contract/test_partners.py`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .any_task import ExploratoryStaticPartnerOverride as ExploratoryStaticPartnerOverride
    from .any_task import PartnerAblatedZero as PartnerAblatedZero
    from .chunked import ChunkedPolicyPartner as ChunkedPolicyPartner
    from .frozen import FrozenHARLPartner as FrozenHARLPartner
    from .frozen import FrozenMAPPOPartner as FrozenMAPPOPartner
    from .frozen import OnnxPartner as OnnxPartner
    from .interface import FrozenPartner as FrozenPartner
    from .interface import PartnerBase as PartnerBase
    from .mixture import PartnerMixture as PartnerMixture
    from .openvla import OpenVLAPartner as OpenVLAPartner
    from .registry import list_registered as list_registered
    from .registry import load_partner as load_partner
    from .registry import register_partner as register_partner
    from .remote import CrossFormerPartner as CrossFormerPartner
    from .remote import LeRobotPartner as LeRobotPartner
    from .scripted_heuristic import ScriptedHeuristicPartner as ScriptedHeuristicPartner
    from .selection import select_zoo as select_zoo
    from .spec import PartnerSpec as PartnerSpec
    from .spec import make_phase0_draft_zoo as make_phase0_draft_zoo
else:
    __dir__, __getattr__ = lazy_names(__name__)
