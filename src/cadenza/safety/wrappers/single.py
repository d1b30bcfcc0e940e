"""A Gymnasium wrapper that filters the ego's action in every step.

`GuardedEnv` is what every such wrapper does around its filter; `SafetyFilterWrapper` has the filter
of robots that take accelerations inside.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, Unpack

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import real_array, require_kinds
from cadenza.core.environments import values_of
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.contracts import (
    Bounds,
    EmergencyController,
    LambdaDict,
    canonical_pair_key,
)
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import (
    Task,
    TaskKeywords,
    hook,
    optional_hook,
    require_untouched_actions,
)
from cadenza.safety.runtime.memory import stop_action
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.runtime.safety_step import SafetyStep
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.wrappers.action_port import (
    ActionMap,
    ActionPort,
    ForceSource,
    InEpisode,
    ObstacleSource,
    PartnerSource,
    SnapshotSource,
    checked_scene,
)

#: Record of a step from the given and the applied action, both in the environment's unit.
Tell: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], dict[str, Any]]


class GuardedEnv(InEpisode, gym.Wrapper[Any, Any, Any, Any], ABC):
    """Base of the wrappers of one environment: the episode, and an action's way in and out.

    An action that needs no change is handed on as the caller's own object.
    """

    def __init__(self, env: gym.Env[Any, Any], *, snapshots: SnapshotSource | None) -> None:
        """Wrap ``env``; without ``snapshots`` its own hook tells where everybody is.

        Raises:
            ConfigurationError: A wrapper inside changes actions after the filter, or there is no
                such hook.
        """
        super().__init__(env)
        require_untouched_actions(env)
        if snapshots is None:
            build = hook(env, "build_agent_snapshots")
            snapshots = lambda _env, _obs, _info: build()  # noqa: E731
        require_kinds(type(self).__name__, snapshots=(snapshots, Callable))
        self._snapshots: SnapshotSource = snapshots

    @abstractmethod
    def _begin(self, seed: int | None) -> None:
        """Tell the filter that an episode begins."""

    @abstractmethod
    def _decide(self, nominal: FloatArray) -> tuple[FloatArray, Tell]:
        """Return the action to execute, in the model's unit, and what tells of the step."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; with a seed, forget what was learnt about the partner too."""
        observation, info = values_of(self.env, "reset", self.env.reset(seed=seed, options=options))
        self._last = None  # no step before the filter knows this episode
        self._begin(seed)
        self._last = (observation, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Filter the ego's action, step, and add the record to the info.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: The action is malformed, or the scene is and the options do not say "brake".
        """
        given = self._port.ego_action(action)
        nominal = self._port.nominal(given)
        decided, tell = self._decide(nominal)
        untouched = np.array_equal(decided, nominal)
        applied = given if untouched else self._port.applied(decided)
        executed = action if untouched else self._port.put(action, applied)
        answer = values_of(self.env, "step", self.env.step(executed))
        observation, reward, terminated, truncated, info = answer
        info = {**info, "safety": tell(given.copy(), applied.copy())}
        self._last = (observation, info)
        return observation, reward, bool(terminated), bool(truncated), info


def safety_record(
    step: SafetyStep,
    *,
    ego_uid: str,
    barrier: LambdaDict,
    nominal: NDArray[Any],
    applied: NDArray[Any],
    fallback: bool,
) -> dict[str, Any]:
    """Return the record of one step.

    Args:
        step: The runtime's decision.
        ego_uid: The guarded agent.
        barrier: h per ego pair before the action, m/s.
        nominal: The policy's action, in the environment's unit.
        applied: What the environment executed, likewise.
        fallback: The wrapper's fallback replaced the runtime's action.

    Returns:
        ``intervened`` (the executed action differs from the nominal one), ``nominal_action``,
        ``applied_action``, ``intervention`` (distance of the two in the control model's unit),
        ``status``, ``infeasible``, ``braked`` (the braking action was executed), ``fallback``,
        ``unfiltered`` (the policy's own action was executed although it misses a row, as only a
        fallback of the caller's can have it), ``uncertified``, ``reason`` (text: which declared
        accelerations this episode disproved, so that its steps are uncertified; empty for none),
        ``bad_input`` (text, empty if sound). The intervention is NaN for a nominal action that is
        not finite. Per partner id: ``barrier`` (m/s, >= 0 in the safe set), ``margin`` (m),
        ``slack`` and ``lambda`` (m/s^2), ``constraint_violation`` (m/s) and, when a forecast was
        scored, ``prediction_gap_loss`` (m/s). Beside obstacles ``static_margin`` (K,), m,
        ``static_uncertified`` and ``backup``, as in `cadenza.safety.contracts.FilterInfo`.
    """
    info = step.info
    # The filter lists partners in string order.
    partners = sorted(a if b == ego_uid else b for a, b in info["lambda"])

    def per_partner(values: NDArray[Any]) -> dict[str, float]:
        return dict(zip(partners, values.tolist(), strict=True))

    def of_pairs(values: Mapping[tuple[str, str], float]) -> dict[str, float]:
        return {uid: float(values[canonical_pair_key(ego_uid, uid)]) for uid in partners}

    sound = bool(np.isfinite(nominal).all())
    intervened = bool(np.any(applied != nominal))
    record: dict[str, Any] = {
        "intervened": intervened,
        "nominal_action": nominal,
        "applied_action": applied,
        "intervention": float(step.intervention) if sound else math.nan,
        "status": info["status"],
        "infeasible": step.infeasible,
        "braked": step.braked,
        "fallback": fallback,
        "unfiltered": fallback and not intervened,
        "uncertified": step.uncertified,
        "reason": step.reason,
        "bad_input": step.bad_input or "",
        "margin": per_partner(info["margin"]),
        "slack": per_partner(info["slack"]),
        "constraint_violation": per_partner(info["constraint_violation"]),
        "lambda": of_pairs(info["lambda"]),
    }
    if barrier:
        record["barrier"] = of_pairs(barrier)
    beside = ("static_margin", "static_uncertified", "backup")
    record |= {key: value for key, value in info.items() if key in beside}
    if step.loss is not None:
        record["prediction_gap_loss"] = {
            uid: float(step.loss[key])
            for uid in partners
            if (key := canonical_pair_key(ego_uid, uid)) in step.loss
        }
    return record


@dataclass(frozen=True, slots=True, eq=False)
class FallbackRequest:
    """What a fallback is asked with: a step in which no action met every row.

    Attributes:
        nominal: The policy's action in the control model's unit, shape (n,).
        retreat: The runtime's action, shape (n,): least violation, or braking.
        snapshots: Every agent's state.
        bounds: Envelope of the task.
    """

    nominal: FloatArray
    retreat: FloatArray
    snapshots: Mapping[str, AgentSnapshot]
    bounds: Bounds


#: What is executed when no action meets every row: the runtime's retreat, a stop along the
#: velocity, or what the caller's function returns (in the control model's unit).
Fallback: TypeAlias = Literal["retreat", "stop"] | Callable[[FallbackRequest], FloatArray]


class SafetyFilterWrapper(GuardedEnv):
    """Filters the ego's action and reports in ``info["safety"]``; see `safety_record` for its keys.

    What is not given is looked up in the environment: ``build_agent_snapshots()``,
    ``build_control_models()``, ``build_bounds()``, ``control_timestep``, ``plant``, ``ego_uid`` and
    ``build_obstacles()``, without which nothing stands around.

    ``reset(seed=k)`` starts everything over, so that equal seeds give equal episodes; ``reset()``
    keeps what was learnt about the partner.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        ego_uid: str | None = None,
        snapshots: SnapshotSource | None = None,
        options: SafetyOptions | None = None,
        emergency_controllers: Mapping[str, EmergencyController] | None = None,
        fallback: Fallback = "retreat",
        action_to_control: ActionMap | None = None,
        action_from_control: ActionMap | None = None,
        partner_id: PartnerSource | None = None,
        contact_forces: ForceSource | None = None,
        obstacles: Sequence[Shape] | Obstacles | ObstacleSource | None = None,
        **task: Unpack[TaskKeywords],
    ) -> None:
        """Wrap ``env``.

        Args:
            env: Environment whose action is a Box, or a Dict of Boxes by agent.
            ego_uid: The agent whose action is filtered; None is looked up.
            snapshots: Called with (env, observation, info) before every step.
            options: Configuration of the runtime; None means the defaults.
            emergency_controllers: See `SafetyRuntime`.
            fallback: What is executed when no action meets every row.
            action_to_control: From the environment's action unit to the control model's.
            action_from_control: The inverse of ``action_to_control``.
            partner_id: Called like ``snapshots``; None means an unknown partner.
            contact_forces: Called like ``snapshots``; None means no measurements.
            obstacles: Shapes that stand still, besides those of ``options``; or called like
                ``snapshots`` for the shapes of a step, of a scan for example; None is looked up.
            **task: See `TaskKeywords`.

        Raises:
            ConfigurationError: The action space does not fit, a wrapper inside changes actions
                after the filter, something is neither given nor offered, or the fallback does not
                go with the options.
        """
        super().__init__(env, snapshots=snapshots)
        uid = hook(env, "ego_uid") if ego_uid is None else ego_uid
        self._task = known = Task(**Task.known(env, optional_hook, obstacles, **task))
        require_kinds(
            "SafetyFilterWrapper",
            partner_id=(partner_id, Callable | None),
            contact_forces=(contact_forces, Callable | None),
            action_to_control=(action_to_control, Callable | None),
            action_from_control=(action_from_control, Callable | None),
        )
        self._partner_id, self._forces = partner_id, contact_forces
        options = SafetyOptions() if options is None else options
        self._runtime = known.runtime(uid, options, emergency_controllers)
        options = self._runtime.options
        beside = known.room.scan is not None or len(options.obstacles) > 0
        self._fallback = _checked_fallback(fallback, options, beside_obstacles=beside)
        self._ego_uid = uid
        self._port = ActionPort(
            env.action_space,
            ego_uid=uid,
            action_dim=known.control_models[uid].action_dim,
            c=known.bounds.action_linf_component,
            to_control=action_to_control,
            from_control=action_from_control,
        )
        self._last_step: SafetyStep | None = None

    @property
    def last_step(self) -> SafetyStep | None:
        """The last decision, with the time it took; None before the first."""
        return self._last_step

    @property
    def runtime(self) -> SafetyRuntime:
        """The runtime that decides: its telemetry, slack and resumable state."""
        return self._runtime

    def _begin(self, seed: int | None) -> None:
        self._task.room.require_same()
        if seed is None:
            self._runtime.begin_episode()
        else:
            self._runtime.begin_run(seed)

    def _decide(self, nominal: FloatArray) -> tuple[FloatArray, Tell]:
        step, barrier, fell_back = self._filtered(nominal)
        self._last_step = step

        def tell(nominal: NDArray[Any], applied: NDArray[Any]) -> dict[str, Any]:
            return safety_record(
                step,
                ego_uid=self._ego_uid,
                barrier=barrier,
                nominal=nominal,
                applied=applied,
                fallback=fell_back,
            )

        return step.action, tell

    def _filtered(self, nominal: FloatArray) -> tuple[SafetyStep, LambdaDict, bool]:
        """Return the step to take, h per pair, and whether the fallback decided."""
        sources = self._sources()
        try:
            snapshots = checked_scene(self._snapshots(*sources))
            forces = None if self._forces is None else self._forces(*sources)
            around = self._task.room.seen(*sources)
        except InputError as error:  # a snapshot refuses numbers that are not finite
            return self._runtime.step_blind(nominal, error), {}, False
        step = self._runtime.step(
            nominal,
            snapshots,
            partner_id=None if self._partner_id is None else self._partner_id(*sources),
            contact_forces=forces,
            obstacles=() if around is None else around,
        )
        if step.bad_input is not None:
            return step, {}, False
        barrier = self._runtime.barrier_values(snapshots)
        if not step.infeasible or self._fallback == "retreat":
            return step, barrier, False
        action = self._fall_back(nominal, step.action, snapshots)
        self._runtime.note_executed(action)
        info = step.info.copy()
        info["intervention"] = math.dist(action.tolist(), nominal.tolist())
        info["fallback_fired"] = step.braked and np.array_equal(action, step.action)
        return replace(step, action=action, info=info), barrier, True

    def _fall_back(
        self, nominal: FloatArray, retreat: FloatArray, snapshots: Mapping[str, AgentSnapshot]
    ) -> FloatArray:
        """Return the fallback's action, inside the box.

        Raises:
            InputError: The caller's function returned something that is no action.
        """
        task = self._task
        if not callable(self._fallback):
            ego = self._ego_uid
            return stop_action(task.control_models[ego], snapshots[ego], task.bounds)
        request = FallbackRequest(nominal.copy(), retreat.copy(), snapshots, task.bounds)
        name = "SafetyFilterWrapper: fallback"
        answer = real_array(name, self._fallback(request))
        require_shape(name, answer, nominal.shape)
        require_finite(name, answer)
        c = task.bounds.action_linf_component
        return np.clip(answer.astype(np.float64), -c, c)


def _checked_fallback(
    fallback: Fallback, options: SafetyOptions, *, beside_obstacles: bool
) -> Fallback:
    if not callable(fallback) and fallback not in ("retreat", "stop"):
        raise ConfigurationError(
            f"SafetyFilterWrapper: fallback: expected 'retreat', 'stop' or a function, got "
            f"{fallback!r}."
        )
    if fallback != "retreat" and options.on_bad_input == "brake":
        raise ConfigurationError(
            "SafetyFilterWrapper: expected fallback 'retreat' with on_bad_input='brake', which "
            f"carries the state on by the runtime's own actions, got {fallback!r}."
        )
    if fallback != "retreat" and beside_obstacles:
        raise ConfigurationError(
            "SafetyFilterWrapper: expected fallback 'retreat' beside obstacles, before which the "
            f"runtime stops by its own actions, got {fallback!r}."
        )
    return fallback
