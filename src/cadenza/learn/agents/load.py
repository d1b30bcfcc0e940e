"""`cadenza.load`: what a file holds, an agent or a policy, as an object that plays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.checkpoints import pending_path, sidecar_path, stated_metadata
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.environments import made_by_id
from cadenza.core.errors import CheckpointError
from cadenza.core.files import is_safetensors
from cadenza.learn.agents.bc import BC
from cadenza.learn.agents.cec import CEC
from cadenza.learn.agents.dagger import DAgger
from cadenza.learn.agents.dqn import DQN
from cadenza.learn.agents.e3t import E3T
from cadenza.learn.agents.grpo import GRPO
from cadenza.learn.agents.happo import HAPPO
from cadenza.learn.agents.hatd3 import HATD3
from cadenza.learn.agents.hlgauss import HLGauss
from cadenza.learn.agents.liam import LIAM
from cadenza.learn.agents.mappo import MAPPO
from cadenza.learn.agents.mbpo import MBPO
from cadenza.learn.agents.ppo import PPO
from cadenza.learn.agents.sac import SAC
from cadenza.learn.agents.solo import SoloAgent
from cadenza.learn.agents.td3 import TD3
from cadenza.learn.agents.team import TeamAgent
from cadenza.learn.agents.upd import UPD
from cadenza.learn.env.making import contract_of
from cadenza.learn.loaded_state import found_at
from cadenza.learn.nn.portable import (
    POLICY_FACT,
    PortableNetwork,
    load_policy_file,
    policy_path,
)

_KINDS: Final = (
    SAC,
    HLGauss,
    MBPO,
    TD3,
    DQN,
    PPO,
    GRPO,
    LIAM,
    E3T,
    UPD,
    CEC,
    MAPPO,
    HAPPO,
    HATD3,
    DAgger,
    BC,
)


def load(
    path: str | Path, env: Any = None, **parts: Any
) -> SoloAgent[Any] | TeamAgent[Any] | PortableNetwork:
    """Return what is in a file: the agent that `Agent.save` wrote, or a policy.

    A policy (``*.policy.safetensors``) plays by `PortableNetwork.predict`, without environment.

    Args:
        path: File.
        env: Environments that the agent learns in from now on, as of `Agent.load`; beside a policy
            what it will act in, or the task contract of that, which its own has to match.
        **parts: Of an agent, as of `Agent.load`.

    Raises:
        CheckpointError: The file is missing, damaged, neither of both, or of another contract.
        ConfigurationError: A setting is unknown, out of range, or built into what was learned.
        InputError: The agent's ``network`` is needed.
    """
    path = Path(path)
    if is_safetensors(path):
        network = load_policy_file(path)
        contract = None if env is None else _contract(env, network.seat)
        if contract is not None:
            contract.require_match(str(path), network.contract)
        return network
    known = {kind.__name__: kind for kind in _KINDS}
    is_told = path.is_file() and (sidecar_path(path).is_file() or pending_path(path).is_file())
    told: Mapping[str, Any] = stated_metadata(path).extra if is_told else {}
    found = str(told.get("algorithm", ""))
    if found not in known:
        came = f"one of {found}; write {found}.load(...)" if found else found_at(path)
        if not found and POLICY_FACT in told:
            came = f"a checkpoint of a training; name {policy_path(path).name} beside it"
        raise CheckpointError(
            f"{path}: expected a policy file or an agent of {', '.join(known)}, got {came}."
        )
    return known[found].load(path, env, **parts)


def _contract(place: Any, seat: str | None) -> TaskContract | None:
    """Return the contract of an environment, of its robot ``seat`` if it has several."""
    if isinstance(place, TaskContract):
        return place
    made: Any = place
    if isinstance(place, str) or callable(place):
        made = made_by_id(place) if isinstance(place, str) else place()
    found = contract_at(made, seat) if hasattr(made, "agent_uids") else contract_of(made)
    if made is not place:
        made.close()
    return found
