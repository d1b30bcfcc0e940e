"""Attacks on filters with a backup: robots in worlds, partners that move second, each step judged.

Per step: packets -> nominal action -> filter -> exact motion of the robot -> of the partners.

Claims (theorems A, A2, B, C and C' of docs/safety.md), judged by exact motion alone:
    walls     no obstacle is touched, whatever partners do;
    escape    a lone partner is not touched in a step that the filter certifies; in free space every
              step is certified;
    passive   the robot is at rest whenever somebody touches it.
Contact:  a gap below -1e-6 m at one of 32 instants of a step; rest is a speed of at most 1e-9 m/s.
Starts:   drawn until the filter certifies the first step: the theorems are about such starts. How
          many were drawn in vain is counted.
Axes:     d = 2 or 3 Cartesian dimensions, T steps, S samples per step, N partners.
Units:    m, m/s, m/s^2, rad, s.
"""

import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.core.files import canonical_json, finite_or_none, sha256_bytes
from cadenza.core.provenance import RunContext, compute_run_metadata
from cadenza.core.seeding import Substream, derive_substream
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.maps import draw_obstacles
from cadenza.safety.record import Figures
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier.config import jsonable_config, require_choices, require_range
from cadenza.safety.verifier.plants import PURSUITS, SAMPLES, Pursuer
from cadenza.safety.verifier.report import save_report, sealed
from cadenza.safety.verifier.robots import DIMS, SCHEMES, Claim, Robot, Start
from cadenza.safety.verifier.worlds import WORLDS, World, draw_world, mapped

#: A gap below this is a contact, m, ...
CONTACT_M: Final = -1e-6
#: ... and a speed up to this is rest, m/s.
REST: Final = 1e-9
#: What the robot wants: a goal, anything, to the partner, to the nearest wall, round and round.
NOMINALS: Final = ("goal", "random", "partner", "wall", "circle")
#: Starts that are drawn until the filter certifies one.
_STARTS: Final = 1000
#: A goal that is this near is reached, m.
_GOAL_M: Final = 0.1
#: Version of the file's layout.
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConfig:
    """One attack; every field changes what is run.

    Attributes:
        robot: "velocity", "unicycle" or "acceleration".
        schemes: Which responses and claims are attacked, e.g. "norm-escape"; empty for all.
        seed: Root seed of every draw, >= 0.
        steps: Steps per scheme, at least.
        episode_steps: Steps of one episode.
        worlds: Kinds of worlds, which take turns; of `WORLDS`.
        map: File of shapes to attack in instead; None for drawn worlds.
        dims: Cartesian dimensions of drawn worlds, of 2 and 3; empty for all that the robot moves
            in, which are 2 for a unicycle.
        dts: Control steps, s.
        radius: Radius of every ball, m.
        position_error: Error of every measured position of a partner, m, made and declared.
        velocity_error: Error of every measured velocity of a partner, m/s, made and declared.
        max_age_steps: Largest age of what is measured of partners, control steps.

    Raises:
        ConfigurationError: A value is out of range, or two values do not fit together.
    """

    robot: str = "velocity"
    schemes: tuple[str, ...] = ()
    seed: int = 0
    steps: int = 20_000
    episode_steps: int = 120
    worlds: tuple[str, ...] = WORLDS
    map: str | None = None
    dims: tuple[int, ...] = ()
    dts: tuple[float, ...] = (0.02, 0.05, 0.1)
    radius: float = 0.2
    position_error: float = 0.0
    velocity_error: float = 0.0
    max_age_steps: int = 0

    def __post_init__(self) -> None:
        require_choices("robot", (self.robot,), tuple(SCHEMES))
        require_choices("schemes", self.schemes or ("",), ("", *SCHEMES[self.robot]))
        require_choices("worlds", self.worlds, WORLDS)
        require_choices("dims", self.dims or (2,), DIMS[self.robot])
        require_choices("dts", self.dts, None)
        for name, low, high in (
            ("seed", 0, 2**63 - 1),
            ("steps", 1, 10**10),
            ("episode_steps", 1, 10**5),
            ("dts", 1e-3, 1.0),
            ("radius", 0.01, 10.0),
            ("position_error", 0.0, 1.0),
            ("velocity_error", 0.0, 10.0),
            ("max_age_steps", 0, 100),
        ):
            require_range(name, getattr(self, name), low, high)
        wrong = self.position_error or self.velocity_error or self.max_age_steps
        if self.robot == "acceleration" and wrong:
            raise ConfigurationError(
                "verifier: position_error, velocity_error and max_age_steps: expected 0 with "
                f"robot=acceleration, got {self.position_error:g}, {self.velocity_error:g} and "
                f"{self.max_age_steps}; `cadenza safety verify` without --robot attacks with them."
            )

    def to_jsonable(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return jsonable_config(self)


@dataclass(slots=True)
class AttackCounts(Figures):
    """What happened in some episodes."""

    episodes: int = 0  # Episodes played
    steps: int = 0  # Control steps played
    vain_starts: int = 0  # Starts that were drawn and not certified
    touched_episodes: int = 0  # Episodes in which a partner touched the robot
    goals: int = 0  # Goals reached
    wall_contacts: int = 0  # Steps in which an obstacle was touched
    static_uncertified: int = 0  # Steps for which the filter does not promise that
    uncertified: int = 0  # Steps for which it promises nothing about partners
    certified_contacts: int = 0  # Steps certified to escape in which it touched the robot
    fast_contacts: int = 0  # Steps in which the robot moved while it was touched
    largest_contact_speed: float = 0.0  # Its speed then, m/s
    min_wall_m: float = math.inf  # Smallest gap to an obstacle, m
    min_gap_m: float = math.inf  # Smallest gap to a partner in steps certified to escape, m
    sources: Counter[str] = field(default_factory=Counter[str])  # Steps by the action's source

    def to_jsonable(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        gaps = {name: finite_or_none(getattr(self, name)) for name in ("min_wall_m", "min_gap_m")}
        return {**asdict(self), **gaps, "sources": dict(sorted(self.sources.items()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """One row of the table: one scheme in free space, or among obstacles."""

    scheme: str  # Its name
    claim: Claim
    world: str  # Kind of world, or name of the map
    counts: AttackCounts

    def failures(self) -> list[str]:
        """Return what contradicts the claim, one sentence each."""
        counts, where = self.counts, f"{self.scheme} in {self.world}"
        found: list[str] = []
        if counts.wall_contacts:
            found.append(
                f"{where}: an obstacle was touched in {counts.wall_contacts} of {counts.steps} "
                f"steps, {-counts.min_wall_m:.3g} m at the deepest"
            )
        if counts.static_uncertified:
            found.append(
                f"{where}: obstacles were not promised in {counts.static_uncertified} of "
                f"{counts.steps} steps, although the first one was certified"
            )
        if self.claim == "escape" and counts.certified_contacts:
            found.append(
                f"{where}: a partner touched the robot in {counts.certified_contacts} certified "
                f"steps, {-counts.min_gap_m:.3g} m at the deepest"
            )
        if self.claim == "escape" and self.world == "free" and counts.uncertified:
            found.append(
                f"{where}: {counts.uncertified} of {counts.steps} steps were uncertified, although "
                "the first one was certified and nothing stood in the way"
            )
        if self.claim == "passive" and counts.fast_contacts:
            found.append(
                f"{where}: the robot moved in {counts.fast_contacts} contacts, with up to "
                f"{counts.largest_contact_speed:.3g} m/s"
            )
        return found

    def to_jsonable(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        row = {"scheme": self.scheme, "claim": self.claim, "world": self.world}
        return {**row, **self.counts.to_jsonable()}


@dataclass(slots=True, eq=False)
class Episode:
    """One episode, as it is played.

    Attributes:
        scheme: Its name.
        claim: What is claimed.
        world: Where it is played.
        dt: Control step, s.
        nominal: What the robot wants.
        pursuits: What the partners do.
        radius: Of every ball, m.
        path: Robot's positions at every instant, S per step, m.
        others: Partners' positions at every instant, N tuples each, m.
        uncertified: Whether each step was.
        sources: Where each step's action came from.
        counts: What happened.
    """

    scheme: str
    claim: Claim
    world: World
    dt: float
    nominal: str
    pursuits: tuple[str, ...]
    radius: float
    path: list[Any] = field(default_factory=list[Any])
    others: list[Any] = field(default_factory=list[Any])
    uncertified: list[bool] = field(default_factory=list[bool])
    sources: list[str] = field(default_factory=list[str])
    counts: AttackCounts = field(default_factory=AttackCounts)

    def rank(self) -> tuple[float, ...]:
        """Order episodes, the most telling first: broken claims, then the smallest gap."""
        counts = self.counts
        return (
            -float(counts.wall_contacts + counts.certified_contacts > 0),
            -float(self.claim == "passive" and counts.fast_contacts > 0),
            min(counts.min_wall_m, counts.min_gap_m),
        )

    def summary(self) -> dict[str, Any]:
        """Return what identifies the episode, as JSON values."""
        return {
            "scheme": self.scheme,
            "world": self.world.name,
            "dim": len(self.path[0]),
            "dt_s": self.dt,
            "nominal": self.nominal,
            "pursuits": list(self.pursuits),
            **self.counts.to_jsonable(),
        }


#: Called with (steps played, steps in all, scheme).
Progress: TypeAlias = Callable[[int, int, str], None]


def attack(
    config: AttackConfig,
    progress: Progress | None = None,
    *,
    make_guard: Callable[..., Any] | None = None,
) -> "AttackReport":
    """Attack every scheme of a configuration and return what happened.

    Args:
        config: What is attacked, where, size and seed; equal ones give equal reports.
        progress: Called after every episode.
        make_guard: Makes the filter of an episode from the arguments of `BackupFilter`; None for
            the one of the scheme.

    Raises:
        ConfigurationError: The map cannot be read, or leaves no room.
    """
    names = config.schemes or tuple(SCHEMES[config.robot])
    episodes = -(-config.steps // config.episode_steps)
    in_all = episodes * config.episode_steps * len(names)
    here = None if config.map is None else mapped(config.map)
    results: dict[tuple[str, str], AttackResult] = {}
    worst: Episode | None = None
    done = 0
    for name in names:
        scheme = SCHEMES[config.robot][name]
        root = derive_substream(f"safety.attack.{config.robot}.{name}", root_seed=config.seed)
        for index in range(episodes):
            guard = make_guard or scheme.guard
            episode = _play(config, name, index, root.child(index), here, guard)
            key = (name, episode.world.name)
            blank = AttackResult(
                scheme=name, claim=scheme.claim, world=key[1], counts=AttackCounts()
            )
            results.setdefault(key, blank).counts.add(episode.counts)
            if worst is None or episode.rank() < worst.rank():
                worst = episode
            done += config.episode_steps
            if progress is not None:
                progress(done, in_all, name)
    if worst is None:
        raise AssertionError("an attack has at least one episode")
    origin = compute_run_metadata(
        seed=config.seed,
        run_kind="safety_attack",
        repo_root=None,
        config_fingerprint=sha256_bytes(canonical_json(config.to_jsonable())),
    )
    return AttackReport(config=config, origin=origin, results=list(results.values()), worst=worst)


def _play(
    config: AttackConfig,
    name: str,
    index: int,
    stream: Substream,
    here: World | None,
    make_guard: Callable[..., Any],
) -> Episode:
    """Play one episode; worlds, dimensions and control steps take turns by its ``index``."""
    starts, draws = (one.default_rng() for one in stream.spawn(2))
    kind = config.worlds[index % len(config.worlds)]
    turn = index // len(config.worlds)
    dims = config.dims or DIMS[config.robot]
    dim = dims[turn % len(dims)]
    dt = config.dts[turn // len(dims) % len(config.dts)]
    for vain in range(_STARTS):
        world = here or draw_world(kind, dim, config.radius, starts)
        stage = _draw_stage(config, name, world, dt, make_guard, starts, draws)
        if stage.play():
            stage.episode.counts.vain_starts = vain
            return stage.episode
    raise ConfigurationError(
        f"attack: {name} in {kind if here is None else here.name}: expected a start that the "
        f"filter certifies, found none in {_STARTS}; give it more room or smaller errors."
    )


def _draw_stage(
    config: AttackConfig,
    name: str,
    world: World,
    dt: float,
    make_guard: Callable[..., Any],
    starts: np.random.Generator,
    draws: np.random.Generator,
) -> "_Stage":
    """Return an episode that has not begun."""
    scheme, error, dim = SCHEMES[config.robot][name], config.position_error, len(world.low)
    x = world.place(config.radius + error + 1e-3, starts)
    velocity = _within(dim, starts) * float(starts.choice((0.0, 0.5, 1.0)))
    if scheme.claim == "passive":
        velocity *= 0.0
    robot = scheme.make(Start(scheme.response, x, velocity, config.radius, dt, starts))
    names: list[str] = []
    partners: list[Pursuer] = []
    for k in range(int(starts.integers(scheme.partners[0], scheme.partners[1] + 1))):
        accel = float(starts.uniform(*(robot.pushes or (0.3, 8.0))))
        if robot.pushes is None and starts.random() < 0.3:
            accel = math.inf
        fastest = float(starts.uniform(*scheme.speeds)) * robot.flight
        bound = PartnerBound(f"p{k}", fastest, accel)
        apart = 2.0 * (config.radius + error) + float(starts.uniform(0.01, 2.0))
        away = _within(dim, starts)
        at = x + apart * away / float(np.linalg.norm(away))
        speed = fastest * _within(dim, starts)
        names.append(str(starts.choice(list(PURSUITS))))
        pursuit = PURSUITS[names[-1]]
        place, motion = tuple(at.tolist()), tuple(speed.tolist())
        partners.append(Pursuer(bound, pursuit, place, motion, draws))
    guard = make_guard(
        robot.model,
        [one.bound for one in partners],
        dt=dt,
        obstacles=world.obstacles,
        guarantee=None if scheme.claim == "walls" else scheme.claim,
        margin_m=0.0,
        position_error_m=error,
        velocity_error=config.velocity_error,
        contact_speed=scheme.contact_speed,
    )
    nominal = str(starts.choice(NOMINALS))
    episode = Episode(name, scheme.claim, world, dt, nominal, tuple(names), config.radius)
    return _Stage(config, episode, robot, partners, guard, draws)


def _within(dim: int, rng: np.random.Generator) -> FloatArray:
    """Return a random vector of at most length one, (d,)."""
    vector: FloatArray = rng.normal(size=dim)
    return vector * rng.uniform(0.1, 1.0) / np.linalg.norm(vector)


class _Stage:
    """One episode that is played: the robot, its partners and its filter."""

    def __init__(
        self,
        config: AttackConfig,
        episode: Episode,
        robot: Robot,
        partners: list[Pursuer],
        guard: Any,
        rng: np.random.Generator,
    ) -> None:
        self._config, self.episode = config, episode
        self._robot, self._partners, self._guard, self._rng = robot, partners, guard, rng
        self._packets: list[list[tuple[Any, Any]]] = [[] for _ in partners]
        self._goal = episode.world.place(config.radius, rng)
        self._misleads = int(rng.integers(3))
        scheme = SCHEMES[config.robot][episode.scheme]
        self._claim, self._tolerated = scheme.claim, scheme.contact_speed
        self._touched_at: Any = None  # where the robot was at the last instant of a contact

    def play(self) -> bool:
        """Play every step and count what happens; return False if the first is not certified."""
        episode = self.episode
        counts = episode.counts
        touched = False
        for step in range(self._config.episode_steps):
            x = np.array(self._robot.plant.position)
            if math.dist(x, self._goal) < _GOAL_M:
                counts.goals += 1
                self._goal = episode.world.place(self._config.radius, self._rng)
            nominal = self._robot.act(self._wish(x, step))
            decision = self._guard.filter(nominal, self._scene(x, step))
            if step == 0 and (decision.uncertified or decision.static_uncertified):
                return False
            touched |= self._move(decision)
            counts.steps += 1
        counts.episodes += 1
        counts.touched_episodes += touched
        return True

    def _wish(self, x: FloatArray, step: int) -> FloatArray:
        """Return the velocity that the robot wants, shape (d,), m/s."""
        kind, way = self.episode.nominal, self._goal - x
        if kind == "random":
            way = self._rng.normal(size=len(x))
        elif kind == "partner" and self._partners:
            way = np.array(self._partners[0].position) - x
        elif kind == "wall" and len(self.episode.world.obstacles):
            way = self.episode.world.nearest(x)
        elif kind == "circle":
            way = np.zeros(len(x))
            way[:2] = math.cos(0.15 * step), math.sin(0.15 * step)
        length = float(np.linalg.norm(way))
        return self._robot.speed * way / length if length > 1e-9 else np.zeros(len(x))

    def _scene(self, x: FloatArray, step: int) -> dict[str, AgentSnapshot]:
        """Return what the filter is told: packets of some age, wrong by the declared errors."""
        config, dt = self._config, self.episode.dt
        scene = {"ego": self._robot.look()}
        for packets, one in zip(self._packets, self._partners, strict=True):
            packets.append((one.position, one.velocity))
            del packets[: -1 - config.max_age_steps]
            age = int(self._rng.integers(len(packets)))
            position, velocity = (np.array(part) for part in packets[-1 - age])
            if config.position_error or config.velocity_error:
                away, aside = self._lie(position - x, step)
                position = position + config.position_error * away
                velocity = velocity + config.velocity_error * aside
            scene[one.bound.uid] = AgentSnapshot(position, velocity, config.radius, age * dt)
        return scene

    def _lie(self, offset: FloatArray, step: int) -> tuple[FloatArray, FloatArray]:
        """Return in which directions position and velocity are wrong, unit vectors (d,)."""
        away = offset / max(float(np.linalg.norm(offset)), 1e-9)
        aside = self._rng.normal(size=len(offset))
        aside -= (aside @ away) * away
        aside /= max(float(np.linalg.norm(aside)), 1e-9)
        flip = 1.0 - 2.0 * (step % 2)
        return ((away, away), (aside, away), (flip * away, flip * aside))[self._misleads]

    def _move(self, decision: Any) -> bool:
        """Move everybody through one step; return whether a partner touched the robot."""
        episode, radius = self.episode, self._config.radius
        counts = episode.counts
        before = self._robot.plant.position
        path = self._robot.plant.step(decision.action, episode.dt)
        theirs = [one.step(before, path, episode.dt) for one in self._partners]
        episode.path += path
        episode.others += zip(*theirs, strict=True)
        episode.uncertified.append(decision.uncertified)
        episode.sources.append(decision.backup)
        counts.sources[decision.backup] += 1
        counts.uncertified += decision.uncertified
        counts.static_uncertified += decision.static_uncertified
        wall = float(episode.world.gap(np.array(path)).min()) - radius
        counts.min_wall_m = min(counts.min_wall_m, wall)
        counts.wall_contacts += wall < CONTACT_M
        if not self._partners:
            return False
        mine = np.array(path)
        gaps = np.linalg.norm(np.array(theirs) - mine, axis=2).min(axis=0) - 2.0 * radius  # (S,)
        touching = gaps < CONTACT_M
        if self._claim == "escape" and not decision.uncertified:
            counts.min_gap_m = min(counts.min_gap_m, float(gaps.min()))
            counts.certified_contacts += bool(touching.any())
        self._watch_speed(mine, touching)
        return bool(touching.any())

    def _watch_speed(self, mine: FloatArray, touching: np.ndarray) -> None:
        """Note how fast the robot is between two instants of a contact."""
        counts = self.episode.counts
        fastest, span = 0.0, self.episode.dt / SAMPLES
        for here, touched in zip(mine, touching.tolist(), strict=True):
            if touched and self._touched_at is not None:
                fastest = max(fastest, float(np.linalg.norm(here - self._touched_at)) / span)
            self._touched_at = here if touched else None
        counts.largest_contact_speed = max(counts.largest_contact_speed, fastest)
        counts.fast_contacts += fastest > self._tolerated + REST


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttackReport:
    """Outcome of one attack."""

    config: AttackConfig  # What was run
    origin: RunContext  # Code, dependencies and seed
    results: list[AttackResult]  # One row per scheme and kind of world
    worst: Episode  # The most telling episode

    @property
    def failures(self) -> list[str]:
        """What contradicts the claims, one sentence each."""
        return [failure for result in self.results for failure in result.failures()]

    @property
    def holds(self) -> bool:
        """Whether the claims hold."""
        return not self.failures

    def totals(self) -> dict[str, dict[str, AttackCounts]]:
        """Return the counts by scheme, in free space ("free") and among obstacles ("walls")."""
        totals: dict[str, dict[str, AttackCounts]] = {}
        for result in self.results:
            where = "free" if result.world == "free" else "walls"
            totals.setdefault(result.scheme, {}).setdefault(where, AttackCounts()).add(
                result.counts
            )
        return totals

    def to_jsonable(self) -> dict[str, Any]:
        """Return the report as JSON values, without its hash."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "safety_attack",
            "holds": self.holds,
            "failures": self.failures,
            "config": self.config.to_jsonable(),
            "origin": {**self.origin.log_fields(), **self.origin.origin_fields()},
            "rows": [result.to_jsonable() for result in self.results],
            "totals": {
                scheme: {where: counts.to_jsonable() for where, counts in parts.items()}
                for scheme, parts in self.totals().items()
            },
            "worst_episode": self.worst.summary(),
        }

    def to_bytes(self) -> bytes:
        """Return the file: canonical JSON with the SHA-256 of the rest as ``content_hash``."""
        return sealed(self.to_jsonable())

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write report and picture below ``folder``, each in one durable step; return their paths.

        Raises:
            StorageError: The file system refused.
        """
        return save_report(folder, self.to_bytes(), draw_attack(self.worst))


#: Colors of the robot, of what is wrong, of partners and of uncertified steps.
_EGO, _ALERT, _PARTNERS, _FLAGGED = (
    "#1d4ed8",
    "#b91c1c",
    ("#c2410c", "#7e22ce", "#0f766e"),
    "#f59e0b",
)
#: Colors of the sources of actions.
_SOURCES: Final = {
    "none": "#94a3b8",
    "rows": "#2563eb",
    "blend": "#0891b2",
    "turn": "#0d9488",
    "radial": "#7c3aed",
    "escape": "#c026d3",
    "brake": "#dc2626",
}
#: Discs drawn along a path.
_GHOSTS: Final = 9


def draw_attack(episode: Episode) -> bytes:
    """Return a PNG of an episode: paths among the obstacles, gaps, and where actions came from.

    In 3-D the obstacles are cut at the height of the robot at the most telling moment. Equal
    episodes give equal bytes on one machine.
    """
    figure: Any = load_extra("matplotlib.figure").Figure(
        figsize=(12.0, 7.0), dpi=120, layout="constrained"
    )
    grid: Any = figure.add_gridspec(3, 2, width_ratios=(1.25, 1.0), height_ratios=(2.0, 1.0, 0.35))
    path = np.array(episode.path)  # (T S, d)
    others = np.array(episode.others).reshape(len(path), -1, path.shape[1])  # (T S, N, d)
    walls = episode.world.gap(path) - episode.radius
    gaps = np.linalg.norm(others - path[:, None], axis=2) - 2.0 * episode.radius  # (T S, N)
    nearest = np.minimum(walls, gaps.min(axis=1, initial=math.inf))
    moment = int(nearest.argmin())
    _draw_scene(figure.add_subplot(grid[:, 0]), episode, path, others, moment)
    times = episode.dt / SAMPLES * np.arange(1, len(path) + 1)
    axes: Any = figure.add_subplot(grid[0, 1])
    if np.isfinite(walls).all():
        axes.plot(times, walls, color="#334155", lw=1.3, label="nearest obstacle")
    for k in range(gaps.shape[1]):
        axes.plot(times, gaps[:, k], color=_PARTNERS[k % 3], lw=1.3, label=f"partner {k + 1}")
    axes.axhline(0.0, color=_ALERT, lw=1.0)
    axes.axvline(times[moment], color="#64748b", lw=0.8, ls=":")
    axes.set_ylim(min(-0.02, 1.1 * float(nearest.min())), float(np.quantile(nearest, 0.95)) + 0.5)
    axes.set(ylabel="gap / m", title="Free distance")
    if any(episode.uncertified):
        flags, whole = np.repeat(episode.uncertified, SAMPLES), axes.get_xaxis_transform()
        style = {"color": _FLAGGED, "alpha": 0.25, "lw": 0, "label": "uncertified"}
        axes.fill_between(times, 0.0, flags, transform=whole, **style)
    axes.legend(frameon=False, fontsize=8, ncols=3)
    speed_axes: Any = figure.add_subplot(grid[1, 1], sharex=axes)
    speed = np.linalg.norm(np.diff(path, axis=0), axis=1) / (episode.dt / SAMPLES)
    speed_axes.plot(times[1:], speed, color=_EGO, lw=1.3)
    speed_axes.set(ylabel="speed / (m/s)")
    bar: Any = figure.add_subplot(grid[2, 1], sharex=axes)
    for source, color in _SOURCES.items():
        steps = np.flatnonzero(np.array(episode.sources) == source)
        if steps.size:
            bars = [(float(step * episode.dt), episode.dt) for step in steps]
            bar.broken_barh(bars, (0.0, 1.0), color=color, lw=0, label=source)
    bar.set(yticks=[], xlabel="time / s", ylabel="action")
    bar.legend(frameon=False, fontsize=8, ncols=7, loc="upper center", bbox_to_anchor=(0.5, -0.9))
    counts = episode.counts
    figure.suptitle(
        f"{episode.scheme} in “{episode.world.name}”, {path.shape[1]}-D, control step "
        f"{episode.dt:g} s; the robot wants “{episode.nominal}”, partners: "
        f"{', '.join(episode.pursuits) or 'none'}\n{counts.wall_contacts} steps with an obstacle "
        f"touched, {counts.certified_contacts} certified ones with a partner; nearest "
        f"{nearest[moment]:.3g} m at {times[moment]:.3g} s",
        fontsize=11,
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_scene(
    axes: Any, episode: Episode, path: FloatArray, others: FloatArray, moment: int
) -> None:
    """Draw obstacles, paths, faint discs at equal times and solid ones at the moment."""
    everything = np.concatenate([path[:, None], others], axis=1)
    around = path[max(0, moment - 1500) : moment + 1500]
    extent = np.stack((around.min(axis=0) - 1.0, around.max(axis=0) + 1.0))
    height = float(path[moment, 2]) if path.shape[1] == 3 else 0.0
    draw_obstacles(axes, episode.world.obstacles, extent, height_m=height)
    circle = load_extra("matplotlib.patches").Circle
    ghosts = np.linspace(0, len(path) - 1, _GHOSTS).astype(int)
    for k in range(everything.shape[1]):
        color = _EGO if k == 0 else _PARTNERS[(k - 1) % 3]
        line = everything[:, k]
        label = "robot" if k == 0 else f"partner {k}: {episode.pursuits[k - 1]}"
        axes.plot(line[:, 0], line[:, 1], color=color, lw=1.2, label=label)
        axes.plot(*line[0, :2], "o", color=color, mfc="white", ms=5, zorder=4)
        for at, alpha in (*((at, 0.12) for at in ghosts), (moment, 0.6)):
            axes.add_patch(circle(line[at, :2], episode.radius, color=color, alpha=alpha, lw=0))
    axes.set_xlim(*extent[:, 0])
    axes.set_ylim(*extent[:, 1])
    cut = f"; obstacles cut at z = {height:.3g} m" if path.shape[1] == 3 else ""
    axes.set_aspect("equal")
    axes.set(xlabel="x / m", ylabel="y / m", title=f"Paths from ○; solid: the nearest moment{cut}")
    axes.title.set_fontsize(10)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
