"""The tasks an ego can be trained and judged on.

A task is a description: how long an episode is, which partners play it, whether it has a success
predicate and offers the safety hooks, which options its environment takes, and where the function
that builds the environment is. `cadenza.benchmark.builders` turns it into live objects.

PettingZoo:  any parallel environment of two agents is a task without registration, under the name
             ``pettingzoo:module:env``; see `cadenza.envs.parallel_task`.
Adding one:  a function `EnvRequest -> TaskEnv` anywhere, and one `register_task` call in a module
             that the entry-point group ``cadenza.tasks`` names, see `cadenza.core.plug_ins`.
"""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError, did_you_mean
from cadenza.core.plug_ins import PlugIns
from cadenza.core.types import ActionDict

#: Values a configuration file can give to a task option.
OptionValue: TypeAlias = bool | int | float | str
#: What the name of a task begins with that is a PettingZoo environment.
PETTINGZOO_PREFIX: Final = "pettingzoo:"
#: Partners that play any task.
ANY_TASK_PARTNERS: Final = ("random_actions", "constant_action")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRequest:
    """What a task's factory is asked for.

    Attributes:
        episode_length: Control steps until truncation, > 0.
        options: One value per option of the task, defaults filled in.
        seats: Uids of ego and partner.
        num_envs: Environments stepped as one batch; 1 asks for a scalar environment
            unless ``batched``.
        root_seed: Experiment seed.
        render_mode: None or ``"rgb_array"``.
        batched: Ask for a batch even of one environment.
        condition_id: The one of the task's conditions that is wanted; None for a task without.
    """

    episode_length: int
    options: Mapping[str, OptionValue]
    seats: tuple[str, str] = ("ego", "partner")
    num_envs: int = 1
    root_seed: int = 0
    render_mode: str | None = None
    batched: bool = False
    condition_id: str | None = None

    @property
    def wants_batch(self) -> bool:
        """Whether a batch is asked for."""
        return self.batched or self.num_envs > 1

    def settings(self) -> dict[str, Any]:
        """Return what every environment is built with: seats, length and seed."""
        return {
            "agent_uids": self.seats,
            "episode_length": self.episode_length,
            "root_seed": self.root_seed,
        }


class TaskEnv(Protocol):
    """What a task's factory returns: several robots in one environment, or in a batch of N.

    Info:      ``success`` of the ego, if the task has a success predicate; where they are measured,
               ``contact``, ``min_distance`` (m) and ``goal_distance`` (m).
    Safety:    a task that supports the filter adds what `cadenza.safety.runtime.env_hooks` needs,
               or, of robots that take velocities, `cadenza.safety.runtime.robot_driver`.
    Links:     ``comm_state()`` is what every robot says about itself (see `cadenza.comm`), and
               ``state_given(uid, known)`` the state of a robot that knows no more of the others.
    Pictures:  ``robot_positions()`` and ``goal_positions()``, (2,) each by uid, m.
    Batches:   also ``num_envs``, ``single_action_space`` and ``single_observation_space``; each
               environment resets itself as in `cadenza.core.types.VectorEnvLike`.
    """

    #: All robots: ego, partner, then further ones; the first two of them by name.
    agent_uids: tuple[str, ...]
    ego_uid: str
    partner_uid: str
    #: Experiment seed, as it was asked for.
    root_seed: int
    #: Time one step takes, s.
    control_timestep: float
    #: Dict of one Box or Discrete per robot; the number of a choice is an array (1,).
    action_space: Any
    #: Dict whose entry ``["agent"][uid]["state"]`` is the Box of a robot's state, (D,).
    observation_space: Any

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start the episode that ``seed`` selects; return observation and info."""
        ...

    def step(self, action: ActionDict) -> Any:
        """Advance one step; return observation, reward, terminated, truncated and info."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class TaskOption(BaseModel):
    """One setting of a task's environment: an integer, a number or a choice, as its default is.

    Attributes:
        default: Value when a configuration does not name it.
        low: Smallest allowed number.
        high: Largest allowed number.
        choices: Allowed texts.
        summary: What it changes.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    default: int | float | str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    summary: str

    def expected(self) -> str:
        """Return what is allowed, in words."""
        if isinstance(self.default, str):
            return f"one of {', '.join(self.choices)}"
        kind = "an integer" if isinstance(self.default, int) else "a number"
        return f"{kind} in [{self.low:g}, {self.high:g}]"

    def allows(self, value: OptionValue) -> bool:
        """Return whether ``value`` is of the default's kind and within the bounds."""
        if isinstance(self.default, str) or isinstance(value, str):
            return value in self.choices
        if isinstance(value, bool) or (isinstance(self.default, int) and isinstance(value, float)):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def number(default: float, low: float, high: float, summary: str) -> TaskOption:
    """Return an option that is an integer, or a number if its default is one."""
    return TaskOption(default=default, low=low, high=high, summary=summary)


def choice(summary: str, *choices: str) -> TaskOption:
    """Return an option with some choices, the first of them by default."""
    return TaskOption(default=choices[0], choices=choices, summary=summary)


class TaskSpec(BaseModel):
    """Description of one version of one task.

    Attributes:
        task_id: Name in configurations and results.
        version: Grows whenever results stop being comparable, >= 1.
        tier: 0 diagnostic, 1 planar robots, 2 arms, 3 experimental; orders listings.
        title: What it asks, in one line.
        summary: Robots, dynamics and score in a few sentences.
        env_factory: ``"module:function"`` that takes an `EnvRequest` and returns the environment.
        interface: Whose interface that environment has; ``"pettingzoo"`` is a parallel one of two
            agents, and its function takes the options as keywords.
        episode_length: Usual control steps per episode.
        max_robots: Most robots it can have, ego and partner included.
        has_success: Whether ``info["success"]`` exists; without it the score is the return.
        partners: Partner classes an evaluation uses by default.
        seen_partner: The one of them that training uses by default.
        supports_safety: Whether the environment offers the hooks of the safety filter.
        supports_batches: Whether its factory makes batches; others are stepped in processes.
        supports_links: Whether an evaluation can put a link between ego and others: the environment
            has ``comm_state()`` and ``state_given(uid, known)``.
        options: Settings of the environment by name; None takes all and leaves checking them to it.
        conditions: Ids of the conditions it comes in, the usual one first; empty for one form only.
        extra: Extra of this package that its environment needs; None if it runs everywhere.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    task_id: str = Field(min_length=1)
    version: int = Field(default=1, ge=1)
    tier: int = Field(ge=0, le=3)
    title: str
    summary: str
    env_factory: str = Field(pattern=r"^[\w.]+:\w+$")
    interface: Literal["cadenza", "pettingzoo"] = "cadenza"
    episode_length: int = Field(gt=0)
    max_robots: int = Field(default=2, ge=2)
    has_success: bool = False
    partners: tuple[str, ...]
    seen_partner: str
    supports_safety: bool = False
    supports_batches: bool = False
    supports_links: bool = False
    options: dict[str, TaskOption] | None = Field(default_factory=dict[str, TaskOption])
    conditions: tuple[str, ...] = ()
    extra: str | None = None

    @property
    def slug(self) -> str:
        """Name with version, e.g. ``"crossing@v1"``."""
        return f"{self.task_id}@v{self.version}"

    def load_factory(self) -> Callable[..., Any]:
        """Import and return the function that builds the environment."""
        module_name, _, function_name = self.env_factory.partition(":")
        try:
            factory = getattr(import_module(module_name), function_name)
        except (ModuleNotFoundError, AttributeError) as error:
            raise ConfigurationError(
                f"Task {self.task_id!r}: expected the function {self.env_factory!r} of an "
                f"installed module, got {type(error).__name__}: {error}."
            ) from error
        return factory

    def make_env(self, request: EnvRequest) -> TaskEnv:
        """Return the environment that ``request`` asks for.

        A batch of a task that has none of its own is one by processes, see
        `cadenza.envs.process_batch`.

        Raises:
            ConfigurationError: There is no such function, or it returned something else.
        """
        if request.wants_batch and not self.supports_batches:
            from cadenza.envs.process_batch import ProcessBatch

            one = replace(request, num_envs=1, batched=False)
            batch: Any = ProcessBatch(partial(self.make_env, one), request.num_envs)
            return batch
        factory = self.load_factory()
        if self.interface == "pettingzoo":
            return _parallel_task(self.task_id, factory, request)
        env = factory(request)
        needed = (*TaskEnv.__annotations__, *(name for name in vars(TaskEnv) if name[0] != "_"))
        missing = [name for name in needed if not hasattr(env, name)]
        if missing:
            raise ConfigurationError(
                f"Task {self.task_id!r}: expected {self.env_factory} to return what "
                f"cadenza.benchmark.tasks.TaskEnv lists, got {type(env).__name__} without "
                f"{', '.join(missing)}; add them."
            )
        return env

    def complete_options(self, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """Return one checked value per option, defaults filled in."""
        if self.options is None:
            return dict(given)
        unknown = sorted(set(given) - set(self.options))
        if unknown:
            known = ", ".join(sorted(self.options)) or "<none>"
            raise ConfigurationError(
                f"env.options[{unknown[0]!r}]: task {self.task_id!r} has no such option; "
                f"known options: {known}."
            )
        complete: dict[str, OptionValue] = {}
        for key, option in self.options.items():
            value = given.get(key, option.default)
            if not option.allows(value):
                raise ConfigurationError(
                    f"env.options[{key!r}] ({option.summary}): expected {option.expected()}, "
                    f"got {value!r}."
                )
            complete[key] = value
        return complete


CROSSING: Final = TaskSpec(
    task_id="crossing",
    tier=1,
    title="Robots swap places across a circle without touching.",
    summary=(
        "Double-integrator discs start on a circle of 2 m radius and drive to the opposite point. "
        "The ego must arrive in time without contact; contact ends the episode."
    ),
    env_factory="cadenza.benchmark.builders:make_crossing_env",
    episode_length=200,
    max_robots=8,
    has_success=True,
    partners=(
        "crossing_goal_seeker",
        "crossing_stationary",
        "crossing_wanderer",
        "crossing_late_braker",
        "crossing_chaser",
    ),
    seen_partner="crossing_goal_seeker",
    supports_safety=True,
    supports_batches=True,
    supports_links=True,
    options={"num_robots": number(2, 2, 8, "robots on the circle, ego and partner included")},
)

DOORWAY: Final = TaskSpec(
    task_id="doorway",
    tier=1,
    title="Two robots on opposite sides of a wall must both pass its one door.",
    summary=(
        "Discs on holonomic bases that take velocities and follow them at 2 m/s^2. The door has "
        "room for one. Both must be at their goals behind it before the takt of 10 s ends, without "
        "touching each other or a wall; the ego is to see who goes first."
    ),
    env_factory="cadenza.benchmark.builders:make_doorway_env",
    episode_length=400,
    has_success=True,
    partners=(
        "doorway_mixed",
        "doorway_polite",
        "doorway_pushy",
        "doorway_hesitant",
        "doorway_changing",
    ),
    seen_partner="doorway_mixed",
    supports_safety=True,
    supports_batches=True,
    options={"takt_s": number(10.0, 1.0, 60.0, "s until both must have arrived")},
)

DOORWAY_DIFFDRIVE: Final = DOORWAY.model_copy(
    update={
        "task_id": "doorway_diffdrive",
        "title": "Two robots on wheels must both pass the one door between them.",
        "summary": (
            "The door for differential drives: an action is a speed and a yaw rate, followed at 2 "
            "m/s^2 and 8 rad/s^2. Rooms, partners, takt and score are those of `doorway`."
        ),
        "env_factory": "cadenza.benchmark.builders:make_doorway_diffdrive_env",
    }
)

MPE_COOPERATIVE_PUSH: Final = TaskSpec(
    task_id="mpe_cooperative_push",
    tier=0,
    title="Two robots cover two landmarks together.",
    summary=(
        "Two velocity-controlled points in a square; the shared reward is minus the sum over "
        "landmarks of the distance to the nearest robot. There is no success predicate."
    ),
    env_factory="cadenza.benchmark.builders:make_mpe_cooperative_push_env",
    episode_length=50,
    partners=("scripted_heuristic",),
    seen_partner="scripted_heuristic",
    supports_batches=True,
    supports_links=True,
)

COCARRY_MJ: Final = TaskSpec(
    task_id="cocarry_mj",
    tier=2,
    title="Two arms carry one rigid bar to a goal on one side.",
    summary=(
        "Two simulated Pandas hold the ends of a bar. The bar must reach its goal and rest there, "
        "level all the way and without the arms pulling against each other; no arm can do it alone."
    ),
    env_factory="cadenza.benchmark.builders:make_cocarry_env",
    episode_length=300,
    has_success=True,
    partners=(
        "cocarry_leader",
        "cocarry_shared",
        "cocarry_follower",
        "cocarry_mixed",
        "cocarry_nominal",
        "cocarry_low_arc",
        "cocarry_lagged_leader",
        "cocarry_pausing_leader",
        "cocarry_follower_turns_leader",
        "cocarry_slow_follower",
        "cocarry_lagged_follower",
        "cocarry_leader_turns_follower",
    ),
    seen_partner="cocarry_leader",
    supports_batches=True,
    extra="mujoco",
    options={
        "condition": choice(
            "what the partner's arm does", "matched", "single_arm", "static_partner", "zero_partner"
        ),
        "ego_sees": choice("hide partner and bar from the ego", "all", "own"),
        "view": choice("20 or 47 numbers for the ego", "task", "full"),
        "action_track": choice("the ego's actions", "grip", "joint"),
        "partner_delay": number(0, 0, 100, "ticks by which the ego sees the partner late"),
        "reward": choice("what a step is worth", "task", "proximity"),
        "guard": choice("report contacts of the ego's arm, or prevent them", "off", "watch", "on"),
        "training": number(0, 0, 1, "tighter limits that end the episode"),
        "bar_length": number(0.23, 0.1, 0.6, "m; the bases move"),
        "bar_mass": number(0.4, 0.05, 5.0, "kg"),
        "stiffness_scale": number(0.4, 0.05, 2.0, "of the arms' actuators"),
        "time_constant_s": number(0.004, 0.004, 0.1, "of the bar's ties; 0.004 is rigid"),
        "physics_step_s": number(0.002, 0.0005, 0.005, "a part of 0.01 s"),
    },
)

HANDOVER_MJ: Final = TaskSpec(
    task_id="handover_mj",
    tier=2,
    title="A presenter hands a keyed peg over, and the receiver seats it before the takt ends.",
    summary=(
        "Two simulated Pandas. The ego grasps the peg as it is presented, within a "
        "millimetre, and seats it in a keyed fixture with a clearance of 1 mm, softly and in time."
    ),
    env_factory="cadenza.benchmark.builders:make_handover_env",
    episode_length=600,
    has_success=True,
    partners=(
        "handover_presenter",
        "handover_nominal",
        "handover_biased",
        "handover_late",
        "handover_yielding",
        "handover_reactive",
    ),
    seen_partner="handover_presenter",
    supports_batches=True,
    extra="mujoco",
    options={
        "condition": choice(
            "what the presenter does", "matched", "presenter_absent", "presenter_frozen"
        ),
        "ego_sees": choice("hide presenter and peg from the ego", "all", "own"),
        "takt_s": number(11.0, 1.0, 30.0, "s until the episode ends"),
        "weld_tolerance_m": number(0.001, 0.0005, 0.01, "m from the handle's point to grasp it"),
        "grasp_error_m": number(0.003, 0.0, 0.02, "of the presenter's grasp, per axis"),
        "yaw_error_deg": number(10.0, 0.0, 40.0, "of the presenter's grasp; roll is a third"),
        "guard": choice("report contacts of the ego's arm, or prevent them", "off", "watch", "on"),
    },
)

STAGE0_SMOKE: Final = TaskSpec(
    task_id="stage0_smoke",
    tier=0,
    title="Three robots with different bodies, rates and senses share an empty scene.",
    summary=(
        "A Panda at 20 Hz, a Fetch at 10 Hz and an idle Allegro hand in SAPIEN, stepped at 100 Hz. "
        "There is no task: the reward is 0. It shows that everything fits together."
    ),
    env_factory="cadenza.benchmark.builders:make_stage0_smoke_env",
    episode_length=100,
    partners=("arm_sway",),
    seen_partner="arm_sway",
    extra="maniskill",
)

STAGE1_PICKPLACE: Final = TaskSpec(
    task_id="stage1_pickplace",
    tier=1,
    title="A Panda carries a cube to a point in the air, beside another robot.",
    summary=(
        "SAPIEN's physics at 20 control steps per second. The partner is a second Panda or a "
        "Fetch, which shares the table. The ego can succeed alone: a control task."
    ),
    env_factory="cadenza.benchmark.builders:make_stage1_pickplace_task_env",
    episode_length=100,
    has_success=True,
    partners=("arm_sway",),
    seen_partner="arm_sway",
    supports_safety=True,
    conditions=(
        "stage1_pickplace_panda_only_mappo_shared_param",
        "stage1_pickplace_panda_plus_fetch_ego_aht_happo_per_agent",
    ),
    extra="maniskill",
)

_plug_ins: Final = PlugIns("cadenza.tasks", ("cadenza.benchmark.teamwork_tasks",))
#: Every version of every known task.
_tasks: dict[tuple[str, int], TaskSpec] = {
    (task.task_id, task.version): task
    for task in (
        CROSSING,
        DOORWAY,
        DOORWAY_DIFFDRIVE,
        MPE_COOPERATIVE_PUSH,
        COCARRY_MJ,
        HANDOVER_MJ,
        STAGE0_SMOKE,
        STAGE1_PICKPLACE,
    )
}


def register_task(task: TaskSpec) -> TaskSpec:
    """Make ``task`` known and return it; what is known here is known in worker processes, too.

    Raises:
        InputError: This version is already registered, or its seen partner is not among its
            partners.
    """
    key = (task.task_id, task.version)
    if key in _tasks:
        raise InputError(
            f"Task {task.task_id!r} version {task.version} is already registered; "
            "raise the version or choose another name."
        )
    if task.seen_partner not in task.partners:
        raise InputError(
            f"Task {task.task_id!r}: expected the seen partner among {task.partners}, "
            f"got {task.seen_partner!r}."
        )
    _tasks[key] = task
    return task


def adopt(task: TaskSpec, modules: Iterable[str]) -> None:
    """Know in this process what another one registered.

    Args:
        task: The task.
        modules: Modules that register the rest when they are imported.
    """
    for module in modules:
        import_module(module)
    _plug_ins.load()
    if not task.task_id.startswith(PETTINGZOO_PREFIX):  # those are known without registration
        _tasks.setdefault((task.task_id, task.version), task)


def get_task(task_id: str, version: int | None = None) -> TaskSpec:
    """Return one task.

    Args:
        task_id: Its name.
        version: Its version; None takes the latest.

    Raises:
        UnknownNameError: No such task or version; lists the known ones.
        ConfigurationError: The PettingZoo environment in the name does not exist.
    """
    if task_id.startswith(PETTINGZOO_PREFIX) and version in (None, 1):
        return pettingzoo_task(task_id)
    _plug_ins.load()
    versions = sorted(known for name, known in _tasks if name == task_id)
    wanted = version if version is not None else (versions[-1] if versions else 0)
    task = _tasks.get((task_id, wanted))
    if task is None:
        known = ", ".join(sorted(f"{name}@v{number}" for name, number in _tasks)) or "<none>"
        asked = task_id if version is None else f"{task_id}@v{version}"
        raise UnknownNameError(
            f"Unknown env task {asked!r}: expected one of {known}"
            f"{did_you_mean(task_id, {name for name, _ in _tasks})}.{_plug_ins.complaint()}"
        )
    return task


def pettingzoo_task(task_id: str) -> TaskSpec:
    """Return the task that a PettingZoo environment is.

    The environment tells by ``metadata["has_success"]`` of its class that ``success`` is in the
    ego's info; its options are the keywords of its constructor, and ``team_reward``.

    Args:
        task_id: ``pettingzoo:module:env``; env is a class or a function that returns a parallel
            environment of two agents, e.g. ``pettingzoo:mpe2.simple_push_v3:parallel_env``.
    """
    entry = task_id.removeprefix(PETTINGZOO_PREFIX)
    try:
        task = TaskSpec(
            task_id=task_id,
            tier=3,
            title="Two agents of a PettingZoo environment.",
            summary=f"What {entry} says; the reward is the ego's own.",
            env_factory=entry,
            interface="pettingzoo",
            episode_length=100,
            partners=ANY_TASK_PARTNERS,
            seen_partner=ANY_TASK_PARTNERS[0],
            options=None,
        )
    except ValidationError as error:
        raise ConfigurationError(
            f"Task {task_id!r}: expected pettingzoo:module:env, e.g. "
            "pettingzoo:mpe2.simple_push_v3:parallel_env."
        ) from error
    facts: Mapping[str, Any] = getattr(task.load_factory(), "metadata", {})
    return task.model_copy(update={"has_success": bool(facts.get("has_success", False))})


def _parallel_task(task_id: str, factory: Callable[..., Any], request: EnvRequest) -> TaskEnv:
    """Return the environment of a task with PettingZoo's interface."""
    from cadenza.envs.parallel_task import ParallelTask

    keywords = dict(request.options)
    team_reward = bool(keywords.pop("team_reward", False))
    if request.render_mode is not None:
        keywords["render_mode"] = request.render_mode
    try:
        inspect.signature(factory).bind(**keywords)
    except TypeError as error:
        raise ConfigurationError(
            f"Task {task_id!r}: expected options that its environment takes, got "
            f"{sorted(keywords)}: {error}."
        ) from error
    return ParallelTask(
        factory(**keywords),
        agent_uids=request.seats,
        episode_length=request.episode_length,
        root_seed=request.root_seed,
        team_reward=team_reward,
        render_mode=request.render_mode,
    )


def list_tasks() -> list[TaskSpec]:
    """Return every known task, by tier, name and version; a new list on every call."""
    _plug_ins.load()
    return sorted(_tasks.values(), key=lambda task: (task.tier, task.task_id, task.version))


def manifest() -> list[dict[str, Any]]:
    """Return `list_tasks` as plain JSON values, equal on every machine."""
    return [task.model_dump(mode="json") for task in list_tasks()]


@contextmanager
def isolated_tasks() -> Generator[None]:
    """Undo every registration made inside the ``with`` block, for tests and notebooks."""
    _plug_ins.load()
    before = dict(_tasks)
    try:
        yield
    finally:
        _tasks.clear()
        _tasks.update(before)
