"""Names under which Gymnasium makes the tasks: ``gym.make("cadenza/Crossing-v1")``.

Gymnasium calls `register_envs` when it is imported, by the entry point of this package; until then,
or where entry points are off, call it. Nothing else is imported before an environment is made.
"""

from typing import Any, Final

#: Gymnasium's names, and the tasks behind them.
_TASKS: Final = {
    "cadenza/Crossing-v1": "crossing",
    "cadenza/CooperativePush-v1": "mpe_cooperative_push",
}


def register_envs() -> None:
    """Make the tasks known to Gymnasium, each as the ego's seat beside a frozen partner."""
    from gymnasium.envs import registration

    known: Any = registration  # partly typed

    for name, task in _TASKS.items():
        if name not in known.registry:
            known.register(
                id=name, entry_point="cadenza.benchmark.gym_envs:ego_env", kwargs={"task": task}
            )
