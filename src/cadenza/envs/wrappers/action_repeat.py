"""Different control rates per robot: each holds its action for its own number of steps."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym

from cadenza.core.errors import InputError
from cadenza.envs.errors import ChamberEnvCompatibilityError
from cadenza.envs.inputs import checked_integer
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.forwarding import ForwardingWrapper


class PerAgentActionRepeatWrapper(ForwardingWrapper):
    """Let robot ``uid`` change its action only every ``action_repeat[uid]`` steps.

    Its effective rate is the env's rate divided by the count. Between changes the action submitted
    for it is ignored and its last one repeated; over N steps it changes ceil(N / count) times. The
    first action after a reset is always used.

    A safety filter decides the ego's action anew in every step, so an ego that holds its actions
    cannot be guarded; partners may hold theirs.
    """

    def __init__(self, env: gym.Env[Any, Any], action_repeat: Mapping[str, int]) -> None:
        """Wrap ``env``.

        Args:
            env: Env with a Dict action space keyed by uid.
            action_repeat: Count >= 1 per uid; robots it does not name act on every step.

        Raises:
            ChamberEnvCompatibilityError: The action space is not a Dict.
            InputError: A count is not an integer >= 1, or a uid is not in the action space.
        """
        known = sub_spaces(env.action_space)
        if known is None:
            raise ChamberEnvCompatibilityError(
                "PerAgentActionRepeatWrapper: expected an env with a Dict action space keyed by "
                f"uid, got {type(env.action_space).__name__}."
            )
        super().__init__(env)
        self._repeat: dict[str, int] = {}
        for uid, count in action_repeat.items():
            if uid not in known:
                raise InputError(
                    f"PerAgentActionRepeatWrapper: expected uids of the action space "
                    f"{list(known)}, got {uid!r}."
                )
            self._repeat[uid] = checked_integer(
                "PerAgentActionRepeatWrapper", f"action_repeat[{uid!r}]", count, low=1
            )
        self._remaining: dict[str, int] = {}
        self._held: dict[str, Any] = {}

    def build_control_models(self) -> Any:
        """Return the control models of the env inside, for a filter that guards its ego.

        Raises:
            ChamberEnvCompatibilityError: The ego holds its actions: the filter's would be dropped.
        """
        uid: str = self.env.get_wrapper_attr("ego_uid")
        if self._repeat.get(uid, 1) > 1:
            raise ChamberEnvCompatibilityError(
                f"PerAgentActionRepeatWrapper: expected action_repeat[{uid!r}] = 1 with a safety "
                f"filter, got {self._repeat[uid]}: the held action would replace the filtered one; "
                "let the ego act on every step, or switch the filter off."
            )
        return self.env.get_wrapper_attr("build_control_models")()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and forget all held actions."""
        result = self.env.reset(seed=seed, options=options)
        self._remaining.clear()
        self._held.clear()
        return result

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Step with each robot's new or held action; uids that ``action`` lacks stay absent.

        An action that the env refuses is not held: the wrapper is as before the call.

        Raises:
            InputError: ``action`` is not keyed by uid.
        """
        if not isinstance(action, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "PerAgentActionRepeatWrapper: expected action to map every uid to an array, got "
                f"{type(action).__name__}."
            )
        held, remaining = dict(self._held), dict(self._remaining)
        for uid, submitted in action.items():
            if remaining.get(uid, 0) == 0:
                # A copy: the caller may reuse its array before the hold ends.
                held[uid] = deepcopy(submitted)
                remaining[uid] = self._repeat.get(uid, 1)
            remaining[uid] -= 1
        result = self.env.step({uid: held[uid] for uid in action})
        self._held, self._remaining = held, remaining
        return result
