"""Registry of ego-training algorithms: the value of ``algo`` in a configuration, to its trainer.

An entry names where the trainer factory lives, ``"module:attribute.path"``, so listing and checking
names imports nothing heavy; `cadenza.aht.train.load_algorithm` imports it. Another package adds its
own with `register_algorithm` in a module that the entry-point group ``cadenza.algorithms`` names,
see `cadenza.core.plug_ins`.
"""

from typing import Final

from cadenza.core.errors import ConfigurationError, UnknownNameError, did_you_mean
from cadenza.core.plug_ins import PlugIns

_ENTRIES: Final[dict[str, str]] = {
    "cec": "cadenza.aht.agents:AgentTrainer.from_config",
    "dqn": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "e3t": "cadenza.aht.agents:AgentTrainer.from_config",
    "ego_aht_happo": "cadenza.aht.ego_ppo:EgoPPOTrainer.from_config",
    "ego_aht_hatd3": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "happo": "cadenza.aht.ego_ppo:EgoPPOTrainer.from_config",
    "hatd3": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "hlgauss": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "liam": "cadenza.aht.agents:AgentTrainer.from_config",
    "mappo": "cadenza.aht.ego_ppo:EgoOnPolicyTrainer.from_config",
    "mbpo": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "ppo": "cadenza.aht.ego_ppo:EgoOnPolicyTrainer.from_config",
    "random": "cadenza.aht.ego_trainer:RandomEgoTrainer.from_config",
    "recurrent_ppo": "cadenza.aht.agents:AgentTrainer.from_config",
    "sac": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "td3": "cadenza.aht.ego_replay:EgoReplayTrainer.from_config",
    "upd": "cadenza.aht.agents:AgentTrainer.from_config",
}


_plug_ins: Final = PlugIns("cadenza.algorithms")


def register_algorithm(name: str, entry: str) -> None:
    """Let ``algo=name`` select the `TrainerFactory` at ``entry``, ``"module:attribute.path"``.

    Raises:
        ConfigurationError: The name is taken, or ``entry`` is not of that form.
    """
    if name in _ENTRIES:
        raise ConfigurationError(
            f"register_algorithm: expected a new name, got {name!r}, which is "
            f"{_ENTRIES[name]!r}; choose another name."
        )
    module, separator, attribute = entry.partition(":")
    if not (module and separator and attribute):
        raise ConfigurationError(
            f"register_algorithm({name!r}): expected 'module:attribute', got {entry!r}."
        )
    _ENTRIES[name] = entry


def list_algorithms() -> tuple[str, ...]:
    """Return the known names, sorted."""
    _plug_ins.load()
    return tuple(sorted(_ENTRIES))


def entry_of(name: str) -> str:
    """Return where the trainer factory called ``name`` lives, ``"module:attribute.path"``.

    Raises:
        UnknownNameError: No such algorithm; the message lists the known ones.
    """
    _plug_ins.load()
    entry = _ENTRIES.get(name)
    if entry is None:
        raise UnknownNameError(unknown_algorithm_message(name))
    return entry


def unknown_algorithm_message(name: str) -> str:
    """Return the sentence that refuses ``name`` and lists the known algorithms."""
    known = list_algorithms()
    return f"algo: expected one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}."
