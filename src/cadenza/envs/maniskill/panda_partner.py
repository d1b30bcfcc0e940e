"""A second Panda, under a name of its own: two robots of one team need different uids."""

import importlib
from typing import Any, Final

from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.maniskill.simulator import load_simulator

#: Name of the second Panda.
PANDA_PARTNER_UID: Final = "panda_partner"


def _define() -> Any:
    """Return the agent class, registered with ManiSkill; None where ManiSkill is absent."""
    try:
        load_simulator("PandaPartner")
    except ChamberEnvCompatibilityError:
        return None
    panda: Any = importlib.import_module("mani_skill.agents.robots.panda.panda").Panda
    registration: Any = importlib.import_module("mani_skill.agents.registration")
    assets: str = importlib.import_module("mani_skill").PACKAGE_ASSET_DIR
    described = {
        "__doc__": "A Panda without wrist camera, the partner where both robots are Pandas.",
        "__module__": __name__,
        "uid": PANDA_PARTNER_UID,
        "urdf_path": f"{assets}/robots/panda/panda_v2.urdf",
    }
    return registration.register_agent()(type("PandaPartner", (panda,), described))


#: The agent class, or None where ManiSkill is absent. It has everything of ManiSkill's Panda but
#: the uid.
PandaPartner: Final[Any] = _define()
