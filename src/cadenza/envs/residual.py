"""Learning a correction of a law instead of everything.

    worlds = ResidualActions(envs, law, share=0.5)
    agent = cadenza.PPO(worlds).learn(100_000)
    policy = worlds.policy(agent.predict)  # in the actions of envs

Equation:  a = clip(law(o) + share * u, low, high), u in [-1, 1]^A what the policy decides.
Axes:      N = environments, O = observation, A = action components.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError, NotReadyError

#: Observations, (N, O), to actions, (N, A).
Law = Callable[[NDArray[Any]], NDArray[Any]]


class ResidualActions(VectorActionWrapper):
    """Adds what a policy decides to what a law would do.

    Actions of this environment are corrections within [-1, 1].
    """

    def __init__(
        self, env: VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]], law: Law, *, share: float
    ) -> None:
        """Wrap ``env``; ``law``, (N, O) to (N, A), need not heed the bounds of the actions.

        Raises:
            InputError: ``share`` is not positive, or the actions are no finite Box of rank 1.
        """
        super().__init__(env)
        untyped: Any = env  # its spaces are of an unknown kind of number
        inner: Any = untyped.single_action_space
        is_box = isinstance(untyped.single_action_space, spaces.Box)
        if not (is_box and len(inner.shape) == 1 and inner.is_bounded()):
            raise InputError(
                f"ResidualActions: expected actions in a bounded Box of rank 1, got {inner}."
            )
        if not 0.0 < share < np.inf:
            raise InputError(f"ResidualActions: expected a finite share > 0, got {share!r}.")
        self.law: Law = law
        self.share: float = float(share)
        self._low: Float32Array = inner.low
        self._high: Float32Array = inner.high
        single = spaces.Box(-1.0, 1.0, inner.shape, np.float32)
        self.single_action_space = single
        self.action_space = batch_space(single, self.num_envs)
        self._observations: NDArray[Any] | None = None

    def reset(self, **kwargs: Any) -> tuple[NDArray[Any], dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride] # passes on whatever the environment takes
        """Begin every episode; see the environment inside."""
        observations, info = self.env.reset(**kwargs)
        self._observations = observations
        return observations, info

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance every environment; see the one inside.

        Args:
            actions: Corrections, (N, A).

        Raises:
            NotReadyError: `reset` was never called.
        """
        outcome: Any = super().step(actions)
        self._observations = outcome[0]
        return outcome

    def actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return what the environment inside is given for corrections, (N, A) float32."""
        if self._observations is None:
            raise NotReadyError("ResidualActions.step: expected a state, got none; call reset().")
        return self.corrected(self._observations, actions)

    def corrected(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[Any]:
        """Return the actions that corrections lead to, (N, A) float32, within the bounds."""
        wanted = self.law(observations) + self.share * np.clip(actions, -1.0, 1.0)
        return np.clip(wanted, self._low, self._high).astype(np.float32)

    def policy(self, correction: Law) -> Law:
        """Return a policy over the actions of the environment inside.

        Args:
            correction: A policy over those of this one, e.g. an agent's ``predict``.
        """
        return lambda observations: self.corrected(observations, correction(observations))
