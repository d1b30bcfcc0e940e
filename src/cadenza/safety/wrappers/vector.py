"""A Gymnasium vector wrapper that filters the egos' actions of a whole batch in every step.

Automatic resets: a forecast is never scored across a reset, whatever the mode.
    "same_step": the state after the step that ends an episode is the next episode's.
    "next_step": the step after the end resets and ignores its action, so that environment's entry
                 of the record says that nothing was executed.
    disabled:    ``reset(options={"reset_mask": ...})`` starts the episodes the mask names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import require_kinds
from cadenza.core.environments import values_of
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.safety.batched.driver import BatchedSafetyDriver, SafetyBatchStep
from cadenza.safety.cbf import Plant
from cadenza.safety.contracts import AgentControlModel, Bounds, EmergencyController
from cadenza.safety.runtime.env_hooks import (
    BatchEnvHooks,
    batch_hook,
    hook,
    require_untouched_actions,
    require_untouched_batch_actions,
)
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot, WheeledBatch, WheeledSnapshot
from cadenza.safety.wrappers.action_port import ActionMap, ActionPort, Task, checked_scene

#: Returns the motion of all agents of all environments from environment, last observation and info.
BatchSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], AgentBatch]
#: Returns the scene of each environment, or what is wrong with it.
RowSource: TypeAlias = Callable[[], Sequence[Mapping[str, AgentSnapshot] | InputError]]
#: Returns the partner's identity, of all environments or of each, from the same.
BatchPartnerSource: TypeAlias = Callable[
    [Any, Any, dict[str, Any]], str | Sequence[str | None] | None
]


class VectorSafetyFilterWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """Filters the egos' actions and reports in ``info["safety"]``, arrays over the environments.

    What is not given is looked up in the batch (``build_agent_batch()`` and the hooks of
    `SafetyFilterWrapper`) or, for batches of single environments such as `SyncVectorEnv`, in the
    environments themselves (``build_agent_snapshots()`` and the same hooks).

    ``info["safety"]`` holds ``intervened``, ``nominal_action``, ``applied_action``,
    ``intervention``, ``infeasible``, ``braked``, ``uncertified``, ``reason`` (text: which
    declared accelerations the episode disproved; empty for none), ``bad_input`` (text, empty if
    sound) and, with one column per partner in string order, ``margin`` (m), ``slack`` and
    ``lambda`` (m/s^2) and ``constraint_violation`` (m/s); ``info["_safety"]`` says where the action
    was executed.

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
        control_models: Mapping[str, AgentControlModel] | None = None,
        bounds: Bounds | None = None,
        control_timestep: float | None = None,
        plant: Plant | None = None,
        options: SafetyOptions | None = None,
        emergency_controller: EmergencyController | None = None,
        action_to_control: ActionMap | None = None,
        action_from_control: ActionMap | None = None,
        partner_id: BatchPartnerSource | None = None,
    ) -> None:
        """Wrap ``env``, a batch whose action is a Box, or a Dict of Boxes by agent.

        ``agents`` and ``partner_id`` are called with (env, observation, info) before every step.
        All else is as of `SafetyFilterWrapper`; maps of actions take batches of them.

        Raises:
            ConfigurationError: The action space does not fit, a wrapper inside changes actions
                after the filter, or something is neither given nor offered.
        """
        super().__init__(env)
        require_untouched_batch_actions(env)
        for single in cast("Sequence[object]", getattr(env.unwrapped, "envs", ())):
            require_untouched_actions(single)
        task = Task.of(
            env,
            look_up,
            ego_uid=ego_uid,
            control_models=control_models,
            bounds=bounds,
            control_timestep=control_timestep,
            plant=plant,
        )
        require_kinds(
            "VectorSafetyFilterWrapper",
            agents=(agents, Callable | None),
            partner_id=(partner_id, Callable | None),
            action_to_control=(action_to_control, Callable | None),
            action_from_control=(action_from_control, Callable | None),
        )
        self._agents = agents_of(env) if agents is None else agents
        options = SafetyOptions() if options is None else options
        self._rows = rows_of(env) if agents is None and options.on_bad_input == "brake" else None
        self._partner_id = partner_id
        self._driver = BatchedSafetyDriver(
            env,
            BatchEnvHooks(
                agents=self._scene,
                control_models=task.control_models,
                bounds=task.bounds,
                control_timestep=task.control_timestep,
                plant=task.plant,
                num_envs=env.num_envs,
            ),
            ego_uid=task.ego_uid,
            options=options,
            emergency_controller=emergency_controller,
        )
        self._port = ActionPort(
            cast("Any", env).action_space,
            ego_uid=task.ego_uid,
            action_dim=task.control_models[task.ego_uid].action_dim,
            c=task.bounds.action_linf_component,
            to_control=action_to_control,
            from_control=action_from_control,
        )
        self._mode = cast("Any", env.metadata).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._done: NDArray[np.bool_] = np.zeros(env.num_envs, dtype=np.bool_)
        self._last: tuple[Any, dict[str, Any]] | None = None

    @property
    def driver(self) -> BatchedSafetyDriver:
        """The driver that decides: its slack, swaps and resumable state."""
        return self._driver

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes; with a seed, forget what was learnt about the partners too.

        ``options["reset_mask"]``, shape (B,), starts only the episodes it names.
        """
        mask = (options or {}).get("reset_mask")  # read first: batches take it out
        observation, info = values_of(self.env, "reset", self.env.reset(seed=seed, options=options))
        started = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask)
        if seed is None or mask is not None:
            self._driver.begin_rows(np.flatnonzero(started).tolist())
        else:
            self._driver.begin_run(int(np.ravel(seed)[0] or 0))
        self._done = self._done & ~started
        self._last = (observation, info)
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Filter the egos' actions, step, and add the record to the info.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: The actions are malformed, or the scene is and the options say "raise".
        """
        given = self._port.ego_action(actions)
        nominal = self._port.nominal(given)
        step = self._decide(nominal)
        untouched = (step.action == nominal).all(axis=1)
        applied = self._port.applied(step.action)
        if untouched.any():  # rounding to the space's dtype must not touch them
            applied[untouched] = given[untouched]
        executed = actions if untouched.all() else self._port.put(actions, applied)
        resets = self._done if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(self._done)
        answer = values_of(self.env, "step", self.env.step(executed))
        observation, reward, terminated, truncated, info = answer
        info = dict(info)
        info["safety"] = _record(step, given.copy(), applied, untouched)
        info["_safety"] = ~resets
        self._done = np.asarray(terminated) | np.asarray(truncated)
        # Neither the last state of an episode nor the first of the next is scored.
        self._driver.begin_rows(np.flatnonzero(resets | self._done).tolist())
        self._last = (observation, info)
        return observation, reward, terminated, truncated, info

    def _decide(self, nominal: FloatArray) -> SafetyBatchStep:
        """Return the driver's decision; with options that brake, one bad scene stops its own."""
        partners = self._partners()
        if self._rows is None:
            return self._driver.step(nominal, partners)
        return self._driver.step_rows(nominal, self._rows(), partners)

    def _scene(self) -> AgentBatch:
        return self._agents(self.env, *self._state())

    def _partners(self) -> str | Sequence[str | None] | None:
        state = self._state()
        return None if self._partner_id is None else self._partner_id(self.env, *state)

    def _state(self) -> tuple[Any, dict[str, Any]]:
        if self._last is None:
            raise NotReadyError(
                "VectorSafetyFilterWrapper.step: expected episodes in progress; call reset()."
            )
        return self._last


def stack_snapshots(snapshots: Sequence[Mapping[str, AgentSnapshot]]) -> AgentBatch:
    """Return the batch of scenes with the same agents and radii.

    Args:
        snapshots: Every agent's snapshot by id, one mapping per environment.

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
    for uid in uids:
        robots = [one for scene in snapshots if isinstance(one := scene[uid], WheeledSnapshot)]
        if len(robots) == len(snapshots):
            headings = np.array([robot.heading for robot in robots])
            rates = np.array([robot.yaw_rate for robot in robots])
            return WheeledBatch(
                uids=uids, **motion, radii=radii, headings=headings, yaw_rates=rates
            )
    return AgentBatch(uids=uids, **motion, radii=radii)


def agents_of(env: VectorEnv[Any, Any, Any]) -> BatchSource:
    """Return the source that reads the batch, or each of its environments.

    Raises:
        ConfigurationError: The batch has no hook and does not reach its environments.
    """
    try:
        build: Callable[[], AgentBatch] = batch_hook(env, "build_agent_batch")
    except ConfigurationError:
        if not hasattr(env.unwrapped, "call"):
            raise
        return lambda env, _obs, _info: stack_snapshots(
            [checked_scene(scene) for scene in _ask(env, "build_agent_snapshots")]
        )
    return lambda _env, _obs, _info: build()


def look_up(env: object, name: str) -> Any:
    """Return a hook of the batch, or of its first environment.

    Raises:
        ConfigurationError: Neither has it.
    """
    try:
        return batch_hook(env, name)
    except ConfigurationError:
        if not hasattr(cast("Any", env).unwrapped, "call"):
            raise
    value = _ask(env, name)[0]
    # The environments have called their own hook already: it may live in another process.
    return (lambda: value) if name.startswith("build_") else value


def _ask(env: object, name: str) -> Sequence[Any]:
    """Return what a hook of every single environment says.

    Raises:
        ConfigurationError: They have no such hook.
    """
    try:
        return cast("Any", env).unwrapped.call(name)
    except AttributeError as error:
        raise ConfigurationError(
            f"VectorSafetyFilterWrapper: expected {name}, got neither an argument nor a batch or "
            "environments that offer it."
        ) from error


def rows_of(env: VectorEnv[Any, Any, Any]) -> RowSource | None:
    """Return the source of single scenes; None for a batch that does not reach its environments."""
    singles: Sequence[object] = getattr(env.unwrapped, "envs", ())
    if not singles:
        return None

    def scene(single: object) -> Mapping[str, AgentSnapshot] | InputError:
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
    return {
        "intervened": ~untouched & (applied != nominal).any(axis=1),
        "nominal_action": nominal,
        "applied_action": applied.copy(),
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
    }
