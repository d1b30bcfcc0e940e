"""Names under which Gymnasium makes the tasks: ``gym.make("cadenza/Crossing-v1")``.

``cadenza/Ego-v1`` is the ego's seat of any task: ``gym.make("cadenza/Ego-v1", task="crossing")``.
Gymnasium 1 finds no plug-ins by itself, so ``import cadenza`` registers them, before or after
``import gymnasium``; alone, ``gym.make("cadenza:cadenza/Crossing-v1")`` imports it first.
"""

from typing import Any, Final

#: Gymnasium's names, and the tasks behind them; None leaves naming one to the caller.
_TASKS: Final[dict[str, str | None]] = {
    "cadenza/Crossing-v1": "crossing",
    "cadenza/Doorway-v1": "doorway",
    "cadenza/DoorwayDiffDrive-v1": "doorway_diffdrive",
    "cadenza/CooperativePush-v1": "mpe_cooperative_push",
    "cadenza/CoCarry-v1": "cocarry_mj",
    "cadenza/Foraging-v1": "foraging",
    "cadenza/OvercookedCrampedRoom-v1": "overcooked_cramped_room",
    "cadenza/OvercookedAsymmetricAdvantages-v1": "overcooked_asymmetric_advantages",
    "cadenza/OvercookedCoordinationRing-v1": "overcooked_coordination_ring",
    "cadenza/OvercookedForcedCoordination-v1": "overcooked_forced_coordination",
    "cadenza/OvercookedCounterCircuit-v1": "overcooked_counter_circuit",
    "cadenza/Ego-v1": None,
    "cadenza/PickPlace-v1": "stage1_pickplace",
    "cadenza/Handover-v1": "handover_mj",
}


def register_envs() -> None:
    """Make the tasks known to Gymnasium, each as the ego's seat beside a frozen partner."""
    from gymnasium.envs import registration

    known: Any = registration  # partly typed
    for name, task in _TASKS.items():
        if name not in known.registry:
            known.register(
                id=name,
                entry_point="cadenza.benchmark.builders:ego_env",
                vector_entry_point="cadenza.benchmark.stream_tasks:ego_envs",
                kwargs={} if task is None else {"task": task},
            )
