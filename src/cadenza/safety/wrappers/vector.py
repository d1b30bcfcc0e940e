"""A Gymnasium vector wrapper that filters the egos' actions of a whole batch in every step.

Automatic resets: a forecast is never scored across a reset, whatever the mode.
    "same_step": the state after the step that ends an episode is the next episode's.
    "next_step": the step after the end resets and ignores its action, so that environment's entry
                 of the record says that nothing was executed.
    disabled:    ``reset(options={"reset_mask": ...})`` starts the episodes the mask names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import require_kinds
from cadenza.core.environments import values_of
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.backup.batched import BatchedObstacles
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.batched.engine import SafetyBatchStep
from cadenza.safety.contracts import EmergencyController
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import (
    BatchEnvHooks,
    SceneOrError,
    Task,
    TaskKeywords,
    all_have,
    batch_hook,
    hook,
    own_batch_hook,
    require_untouched_actions,
)
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot, WheeledBatch, WheeledSnapshot
from cadenza.safety.wrappers.action_port import (
    ActionMap,
    ActionPort,
    InEpisode,
    checked_scene,
)

#: Returns the motion of all agents of all environments from environment, last observation and info.
BatchSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], AgentBatch]
#: Returns the shapes of one step, of all environments or of each, from the same.
BatchObstacleSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], BatchedObstacles]
#: Returns the partner's identity, of all environments or of each, from the same.
BatchPartnerSource: TypeAlias = Callable[
    [Any, Any, dict[str, Any]], str | Sequence[str | None] | None
]


#: Record of a step from the given and the applied actions, both in the environment's unit, and from
#: where nothing was changed, (B,).
BatchTell: TypeAlias = Callable[
    [NDArray[Any], NDArray[Any], NDArray[np.bool_]], dict[str, NDArray[Any]]
]


class GuardedBatch(InEpisode, VectorWrapper[Any, Any, Any, Any, Any], ABC):
    """Base of the wrappers of a batch: episodes and resets, and the actions' way in and out."""

    def __init__(self, env: VectorEnv[Any, Any, Any], *, agents: BatchSource | None) -> None:
        """Wrap ``env``; without ``agents`` its own hook tells where everybody is.

        Raises:
            ConfigurationError: A wrapper inside changes actions after the filter, or there is no
                such hook.
        """
        super().__init__(env)
        require_untouched_actions(env)
        for single in cast("Sequence[object]", getattr(env.unwrapped, "envs", ())):
            require_untouched_actions(single)
        require_kinds(type(self).__name__, agents=(agents, Callable | None))
        self._agents: BatchSource = agents_of(env) if agents is None else agents
        self._mode = cast("Any", env.metadata).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._done: NDArray[np.bool_] = np.zeros(env.num_envs, dtype=np.bool_)

    @abstractmethod
    def _begin(self, seed: Any, rows: list[int] | None) -> None:
        """Tell the filter that episodes begin, in the environments ``rows`` or in all."""

    @abstractmethod
    def _end(self, rows: list[int]) -> None:
        """Tell the filter where the last state does not lead to the next."""

    @abstractmethod
    def _decide(self, nominal: FloatArray) -> tuple[FloatArray, BatchTell]:
        """Return the actions to execute, in the model's unit, and what tells of the step."""

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes; with a seed, forget what was learnt about the partners too.

        ``options["reset_mask"]``, shape (B,), starts only the episodes it names.
        """
        mask = (options or {}).get("reset_mask")  # read first: batches take it out
        observation, info = values_of(self.env, "reset", self.env.reset(seed=seed, options=options))
        self._last = None  # no step before the filter knows these episodes
        self._begin(seed, None if mask is None else np.flatnonzero(mask).tolist())
        started = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask)
        self._done = self._done & ~started
        self._last = (observation, info)
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Filter the egos' actions, step, and add the record to the info.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: The actions are malformed, or the scene is and the options do not say
                "brake".
        """
        given = self._port.ego_action(actions)
        nominal = self._port.nominal(given)
        decided, tell = self._decide(nominal)
        untouched = (decided == nominal).all(axis=1)
        applied = self._port.applied(decided)
        if untouched.any():  # rounding to the space's dtype must not touch them
            applied[untouched] = given[untouched]
        executed = actions if untouched.all() else self._port.put(actions, applied)
        resets = self._done if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(self._done)
        answer = values_of(self.env, "step", self.env.step(executed))
        observation, reward, terminated, truncated, info = answer
        record = tell(given.copy(), applied.copy(), untouched)
        info = {**info, "safety": record, "_safety": ~resets}
        self._done = np.asarray(terminated) | np.asarray(truncated)
        # Neither the last state of an episode nor the first of the next says more.
        self._last = None
        self._end(np.flatnonzero(resets | self._done).tolist())
        self._last = (observation, info)
        return observation, reward, terminated, truncated, info


class VectorSafetyFilterWrapper(GuardedBatch):
    """Filters the egos' actions and reports in ``info["safety"]``, arrays over the environments.

    What is not given is looked up in the batch (``build_agent_batch()`` and the hooks of
    `SafetyFilterWrapper`) or, for batches of single environments such as `SyncVectorEnv`, in the
    environments themselves (``build_agent_snapshots()`` and the same hooks).

    ``info["safety"]`` holds ``intervened``, ``nominal_action``, ``applied_action``,
    ``intervention``, ``infeasible``, ``braked``, ``uncertified``, ``reason`` (text: which
    declared accelerations the episode disproved; empty for none), ``bad_input`` (text, empty if
    sound) and, with one column per partner in string order, ``margin`` (m), ``slack`` and
    ``lambda`` (m/s^2) and ``constraint_violation`` (m/s); beside obstacles ``static_margin`` (m, to
    the nearest) and ``static_uncertified``; ``info["_safety"]`` says where the action was executed.

    With ``on_bad_input="brake"`` a malformed scene of one environment of a `SyncVectorEnv` makes
    that environment brake; of a source of whole batches, all of them.

    ``reset(seed=k)`` starts everything over; ``reset()`` keeps what was learnt about the partners.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        ego_uid: str | None = None,
        agents: BatchSource | None = None,
        options: SafetyOptions | None = None,
        emergency_controller: EmergencyController | None = None,
        action_to_control: ActionMap | None = None,
        action_from_control: ActionMap | None = None,
        partner_id: BatchPartnerSource | None = None,
        obstacles: Sequence[Shape] | Obstacles | BatchObstacleSource | None = None,
        **task: Unpack[TaskKeywords],
    ) -> None:
        """Wrap ``env``, a batch whose action is a Box, or a Dict of Boxes by agent.

        ``agents`` and ``partner_id`` are called with (env, observation, info) before every step.
        All else is as of `SafetyFilterWrapper`; maps of actions take batches of them, and a
        function for ``obstacles`` returns the shapes of all environments, or one `Obstacles` for
        each. Beside obstacles environments are decided one by one.

        Raises:
            ConfigurationError: The action space does not fit, a wrapper inside changes actions
                after the filter, or something is neither given nor offered.
        """
        super().__init__(env, agents=agents)
        uid = hook(env, "ego_uid", batch_hook) if ego_uid is None else ego_uid
        known = Task.known(env, batch_hook, obstacles, **task)
        require_kinds(
            "VectorSafetyFilterWrapper",
            partner_id=(partner_id, Callable | None),
            action_to_control=(action_to_control, Callable | None),
            action_from_control=(action_from_control, Callable | None),
        )
        options = SafetyOptions() if options is None else options
        room = known["room"]
        brakes = agents is None and options.on_bad_input == "brake"
        self._partner_id = partner_id
        self._driver = BatchedSafetyDriver(
            env,
            BatchEnvHooks(
                agents=lambda: self._agents(*self._sources()),
                num_envs=env.num_envs,
                each=rows_of(env) if brakes else None,
                obstacles=room.scan and (lambda: room.seen(*self._sources())),
                **known,
            ),
            ego_uid=uid,
            options=options,
            emergency_controller=emergency_controller,
        )
        self._port = ActionPort(
            cast("Any", env).action_space,
            ego_uid=uid,
            action_dim=known["control_models"][uid].action_dim,
            c=known["bounds"].action_linf_component,
            to_control=action_to_control,
            from_control=action_from_control,
        )

    @property
    def driver(self) -> BatchedSafetyDriver:
        """The driver that decides: its slack, swaps and resumable state."""
        return self._driver

    def _begin(self, seed: Any, rows: list[int] | None) -> None:
        if seed is None or rows is not None:
            self._driver.begin_rows(range(self.num_envs) if rows is None else rows)
        else:
            self._driver.begin_run(int(np.ravel(seed)[0] or 0))

    def _end(self, rows: list[int]) -> None:
        self._driver.begin_rows(rows)

    def _decide(self, nominal: FloatArray) -> tuple[FloatArray, BatchTell]:
        sources = self._sources()
        partners = None if self._partner_id is None else self._partner_id(*sources)
        step = self._driver.step(nominal, partners)
        return step.action, partial(_record, step)


def stack_snapshots(
    snapshots: Sequence[Mapping[str, AgentSnapshot]], *, ego_uid: str | None = None
) -> AgentBatch:
    """Return the batch of scenes with the same agents and radii.

    Args:
        snapshots: Every agent's snapshot by id, one mapping per environment.
        ego_uid: The guarded agent, whose headings the batch holds if it is on wheels.

    Raises:
        ConfigurationError: The scenes differ in agents or radii, or a snapshot has an age.
    """
    uids = tuple(snapshots[0])
    radii = np.array([snapshots[0][uid].radius for uid in uids])
    for scene in snapshots:
        if scene.keys() != snapshots[0].keys() or any(
            scene[uid].radius != radius or scene[uid].age_s > 0.0
            for uid, radius in zip(uids, radii, strict=True)
        ):
            raise ConfigurationError(
                "VectorSafetyFilterWrapper: expected current snapshots of the same agents with the "
                "same radii in every environment, got others; wrap each environment in "
                "SafetyFilterWrapper instead."
            )

    def stacked(name: str) -> FloatArray:
        return np.array([[getattr(scene[uid], name) for uid in uids] for scene in snapshots])

    motion = {"positions": stacked("position"), "velocities": stacked("velocity")}
    scenes = [] if ego_uid is None else [scene.get(ego_uid) for scene in snapshots]
    egos = [one for one in scenes if isinstance(one, WheeledSnapshot)]
    if len(egos) == len(snapshots):
        headings = np.array([ego.heading for ego in egos])
        rates = np.array([ego.yaw_rate for ego in egos])
        return WheeledBatch(uids=uids, **motion, radii=radii, headings=headings, yaw_rates=rates)
    return AgentBatch(uids=uids, **motion, radii=radii)


def agents_of(env: VectorEnv[Any, Any, Any], *, ego_uid: str | None = None) -> BatchSource:
    """Return the source that reads the batch, or each of its environments.

    ``ego_uid`` as in `stack_snapshots`.

    Raises:
        ConfigurationError: Neither offers where everybody is.
    """
    build: Callable[[], AgentBatch] | None = own_batch_hook(env, "build_agent_batch")
    if build is not None:
        return lambda _env, _obs, _info: build()
    name = "build_agent_snapshots"
    if not all_have(env, name):
        return hook(env, "build_agent_batch", own_batch_hook)  # which says what is missing
    ask: Any = cast("Any", env.unwrapped).call

    def read(_env: Any, _obs: Any, _info: dict[str, Any]) -> AgentBatch:
        return stack_snapshots([checked_scene(one) for one in ask(name)], ego_uid=ego_uid)

    return read


def rows_of(env: VectorEnv[Any, Any, Any]) -> Callable[[], Sequence[SceneOrError]] | None:
    """Return the source of single scenes; None for a batch that does not reach its environments."""
    singles: Sequence[object] = getattr(env.unwrapped, "envs", ())
    if not singles:
        return None

    def scene(single: object) -> SceneOrError:
        try:
            return checked_scene(hook(single, "build_agent_snapshots")())
        except InputError as error:
            return error

    return lambda: [scene(single) for single in singles]


def _record(
    step: SafetyBatchStep,
    nominal: NDArray[Any],
    applied: NDArray[Any],
    untouched: NDArray[np.bool_],
) -> dict[str, NDArray[Any]]:
    """Return the record of one step, the environment first on every axis."""
    beside = isinstance(step.static_margin, np.ndarray)
    static = {"static_margin": step.static_margin, "static_uncertified": step.static_uncertified}
    return {
        "intervened": ~untouched & (applied != nominal).any(axis=1),
        "nominal_action": nominal,
        "applied_action": applied,
        "intervention": step.intervention,
        "infeasible": step.infeasible,
        "braked": step.braked,
        "uncertified": step.uncertified,
        "reason": np.array([step.reason.get(row, "") for row in range(len(applied))]),
        "bad_input": np.array([step.bad_input.get(row, "") for row in range(len(applied))]),
        "margin": step.margin,
        "slack": step.slack,
        "constraint_violation": step.constraint_violation,
        "lambda": step.used_lambda,
        **(cast("dict[str, NDArray[Any]]", static) if beside else {}),
    }
