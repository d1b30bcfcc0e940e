"""Attacks on filters with a backup: robots in worlds, partners that move second, each step judged.

Per step: packets -> nominal action -> filter -> exact motion of the robots -> of the partners.

Claims (theorems A, A2, B, C and C' of docs/safety.md), judged by exact motion alone:
    walls     no obstacle is touched, whatever partners do;
    escape    a lone partner is not touched in a step that the filter certifies; in free space every
              step is certified. Where accelerations are commanded, certified steps lead from states
              of the safe set to states of it.
    passive   the robot is at rest whenever somebody touches it.
Contact:  a gap below -1e-6 m at one of 32 instants of a step; rest is a speed of at most 1e-9 m/s.
Starts:   drawn until the filter certifies the first step: the theorems are about such starts. How
          many were drawn in vain is counted.
Partners: choose `CHOICES` times per step, knowing the robot's whole motion in it. Their velocity
          changes linearly in between, so both of their bounds hold at every instant.
Errors:   a partner is measured where it is least dangerous, see `adversaries`; the robot is seen
          farther from the nearest obstacle than it is, and then nearer, in turns.
Axes:     B episodes, S samples per step, T steps, N partners, d Cartesian dimensions.
Units:    m, m/s, m/s^2, rad, s.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.core.progress import ProgressReport
from cadenza.core.seeding import Substream, derive_substream
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.snapshot import WheeledSnapshot
from cadenza.safety.verifier.adversaries import (
    PURSUITS,
    Adversary,
    BoolArray,
    Motion,
    Opponents,
    length,
    unit,
)
from cadenza.safety.verifier.conditions import Condition
from cadenza.safety.verifier.config import AttackConfig
from cadenza.safety.verifier.episodes import BROKEN, STATIC, UNCERTIFIED, EpisodeRecord
from cadenza.safety.verifier.guards import EGO, Sight
from cadenza.safety.verifier.report import AttackCounts, AttackReport, AttackResult
from cadenza.safety.verifier.robots import (
    DIMS,
    SAMPLES,
    SCHEMES,
    AccelerationModel,
    Draw,
    Start,
    UnicyclePlant,
    World,
    draw_world,
    mapped,
)

#: Choices of a partner per step.
CHOICES: Final = 16
#: A gap below this is a contact, m, ...
CONTACT_M: Final = -1e-6
#: ... and a speed up to this is rest, m/s.
REST: Final = 1e-9
#: Distance by which rounding may put a state outside the safe set, m.
_EXIT: Final = -1e-6
#: What the robot wants: a goal, anything, to the partner, to the nearest wall, round and round.
NOMINALS: Final = ("goal", "random", "partner", "wall", "circle")
#: Starts that are drawn until the filter certifies one.
_STARTS: Final = 1000
#: A goal that is this near is reached, m.
_GOAL_M: Final = 0.1
#: Most episodes that are played beside each other; bounds memory to about 100 MB.
_BATCH: Final = 64

#: Makes the filter of an episode from the arguments of `BackupFilter`.
GuardMaker = Callable[..., Any]


def attack(
    config: AttackConfig,
    progress: ProgressReport | None = None,
    *,
    make_guard: GuardMaker | None = None,
) -> AttackReport:
    """Attack every scheme of a configuration and return what happened.

    Args:
        config: What is attacked, where, size and seed; equal ones give equal reports.
        progress: Called with steps played, steps in all and the scheme, after every step of a
            batch.
        make_guard: Makes the filter of an episode; None for the one of the scheme.

    Raises:
        ConfigurationError: The map cannot be read, or leaves no room.
    """
    names = config.schemes or tuple(SCHEMES[config.robot])
    here = None if config.map is None else mapped(config.map, config.robot)
    batches = {name: _batches(config, name, here) for name in names}
    episodes = sum(len(batch) for of_scheme in batches.values() for batch in of_scheme)
    in_all = episodes * config.episode_steps
    results: dict[tuple[str, str], AttackResult] = {}
    worst: EpisodeRecord | None = None
    done = 0
    for name in names:
        scheme = SCHEMES[config.robot][name]
        root = derive_substream(f"safety.attack.{config.robot}.{name}", root_seed=config.seed)
        for index, cells in enumerate(batches[name]):
            batch = _Batch(config, name, cells, root.child(index), make_guard or scheme.guard)
            for _ in range(config.episode_steps):
                batch.step()
                done += len(cells)
                if progress is not None:
                    progress(done, in_all, name)
            for episode, counts in batch.judged():
                world = str(episode.summary["world"])
                blank = AttackResult(
                    scheme=name,
                    claim=scheme.claim,
                    world=world,
                    counts=AttackCounts(),
                    errors=config.position_error > 0.0,
                    wavers=(config.robot, scheme.response) == ("unicycle", "ideal")
                    and max(config.position_error, config.velocity_error) > 0.0,
                    free=len(episode.obstacles) == 0,
                )
                results.setdefault((name, world), blank).counts.add(counts)
                if worst is None or episode.rank < worst.rank:
                    worst = episode
    return AttackReport.of(config, list(results.values()), worst)


class _Cell(NamedTuple):
    """What an episode is to be like."""

    world: str | World  # Kind of world, or the world itself
    dim: int
    dt: float  # s
    partners: int


def _batches(config: AttackConfig, name: str, here: World | None) -> list[list[_Cell]]:
    """Return the episodes of a scheme, those of equal axes beside each other.

    Worlds, dimensions, control steps and numbers of partners take turns.
    """
    most = SCHEMES[config.robot][name].partners
    worlds = config.worlds if here is None else (here,)
    dims = (config.dims or DIMS[config.robot]) if here is None else (len(here.low),)
    groups: dict[tuple[int, int], list[_Cell]] = {}
    for index in range(-(-config.steps // config.episode_steps)):
        turn, world = divmod(index, len(worlds))
        dim, dt = dims[turn % len(dims)], config.dts[turn // len(dims) % len(config.dts)]
        partners = 1 + (index + turn) % most if most else 0
        cell = _Cell(worlds[world], dim, dt, partners)
        groups.setdefault((dim, partners), []).append(cell)
    return [
        group[first : first + _BATCH]
        for group in groups.values()
        for first in range(0, len(group), _BATCH)
    ]


class _Lot(NamedTuple):
    """What is drawn of an episode."""

    world: World
    start: Start
    bounds: list[PartnerBound]
    positions: FloatArray  # Of the partners, shape (N, d), m
    velocities: FloatArray  # Shape (N, d), m/s


class Pursuers:
    """Partners that move second, within their bounds at every instant.

    Args:
        opponents: What they want.
        positions: Where they are, shape (B, N, d), m.
        velocities: Shape (B, N, d), m/s; no faster than they may.
        max_speed: Bounds, shape (B, N), m/s.
        max_accel: The same, m/s^2; infinite for partners that change their velocity at once.
        rng: Only source of randomness.
    """

    def __init__(
        self,
        opponents: Opponents,
        positions: FloatArray,
        velocities: FloatArray,
        max_speed: FloatArray,
        max_accel: FloatArray,
        rng: np.random.Generator,
    ) -> None:
        self.positions: FloatArray = positions
        self.velocities: FloatArray = velocities
        self._opponents, self._rng, self._steps = opponents, rng, 0
        self._max_speed, self._max_accel = max_speed.reshape(-1), max_accel[..., None]

    def step(
        self,
        start: FloatArray,
        path: FloatArray,
        dt: FloatArray,
        believed: FloatArray | None = None,
        ages_s: FloatArray | None = None,
    ) -> FloatArray:
        """Return `SAMPLES` positions of each within the step, (S, B, N, d), and be at its end.

        Args:
            start: Where the robots were, shape (B, d), m.
            path: Where they will be within the step, shape (S, B, d), m.
            dt: Control steps, shape (B,), s.
            believed: Where filters believe them to be, shape (B, N, d), m; None: where they are.
            ages_s: How old that belief is, shape (B, N), s; None: 0.
        """
        shape = self.positions.shape
        if not shape[1]:
            return np.broadcast_to(self.positions, (SAMPLES, *shape))
        believed = self.positions if believed is None else believed
        ages_s = np.zeros(shape[:2]) if ages_s is None else ages_s
        stride, span = SAMPLES // CHOICES, (dt / CHOICES)[:, None, None]
        mean = (path[-1] - start) / dt[:, None]
        mine: list[FloatArray] = []
        for choice in range(CHOICES):
            here = start if choice == 0 else path[choice * stride - 1]
            wanted = self._opponents.commands(
                Motion(here, mean, self.positions, self.velocities),
                believed,
                ages_s,
                self._steps + choice / CHOICES,
                self._rng,
                dt=np.repeat(dt, shape[1]),
                bound=self._max_speed,
            )
            change = wanted - self.velocities
            size = np.maximum(length(change), 1e-300)[..., None]
            end = self.velocities + change * np.minimum(1.0, self._max_accel * span / size)
            begin = np.where(np.isinf(self._max_accel), end, self.velocities)
            for part in range(1, stride + 1):
                s = span * part / stride
                mine.append(self.positions + s * (begin + (0.5 * part / stride) * (end - begin)))
            self.positions, self.velocities = mine[-1], end
        self._steps += 1
        return np.stack(mine)


class Pursuer:
    """One partner that moves second beside one robot; it begins at rest, for scripts and tests."""

    def __init__(
        self, bound: PartnerBound, strategy: Adversary, position: Any, rng: np.random.Generator
    ) -> None:
        self.bound: PartnerBound = bound
        place = np.reshape(np.asarray(position, dtype=np.float64), (1, 1, -1))
        chosen, dim = np.zeros((1, 1), dtype=np.intp), place.shape[2]
        opponents = Opponents({"it": strategy}, chosen, dim=dim, contact_m=0.0, rng=rng)
        limits = np.array([[bound.max_speed]]), np.array([[bound.max_accel]])
        self._it = Pursuers(opponents, place, np.zeros_like(place), *limits, rng)

    @property
    def position(self) -> FloatArray:
        """Where it is, shape (d,), m."""
        return self._it.positions[0, 0]

    @property
    def velocity(self) -> FloatArray:
        """Its velocity, shape (d,), m/s."""
        return self._it.velocities[0, 0]

    def step(self, start: FloatArray, path: FloatArray, dt: float) -> FloatArray:
        """Return its positions in a step, (S, d), in which the robot goes from ``start``, (d,)."""
        return self._it.step(start[None], path[:, None], np.array([dt]))[:, 0, 0]


class _Batch:
    """Episodes of a scheme that are played beside each other."""

    def __init__(
        self,
        config: AttackConfig,
        name: str,
        cells: list[_Cell],
        stream: Substream,
        make_guard: GuardMaker,
    ) -> None:
        starts, self._rng = (one.default_rng() for one in stream.spawn(2))
        self._config, self._name, self._cells = config, name, cells
        self._scheme, self._make_guard = SCHEMES[config.robot][name], make_guard
        self._dt: FloatArray = np.array([cell.dt for cell in cells])
        chosen = starts.integers(len(PURSUITS), size=(len(cells), cells[0].partners))
        self._opponents = Opponents(
            PURSUITS, chosen, dim=cells[0].dim, contact_m=2.0 * config.radius, rng=starts
        )
        self._nominals: list[str] = starts.choice(NOMINALS, size=len(cells)).tolist()
        self._counts = [AttackCounts(episodes=1, steps=config.episode_steps) for _ in cells]
        self._goals: FloatArray = np.zeros((len(cells), cells[0].dim))
        self._lots = [self._lot(k, starts) for k in range(len(cells))]
        self._robots, self._first = self._certified(starts)
        self._guards = [self._guard(k) for k in range(len(cells))]
        self._partners = self._pursuers(self._rng)
        self._packets: list[tuple[FloatArray, FloatArray]] = []
        #: Robots and partners at every instant, first at the start: (1 or S, B, d) and so on.
        self._path = [self._robots.position[None]]
        self._others = [self._partners.positions[None]]
        #: Where everybody is at the begin of every step, and the decisions in it.
        self._motions: list[Motion] = []
        self._decisions: list[list[Any]] = []

    def _certified(self, rng: np.random.Generator) -> tuple[Any, FloatArray]:
        """Draw the starts anew that the filters do not certify; return robots and nominal actions.

        Raises:
            ConfigurationError: None is found for one of the episodes.
        """
        waiting = list(range(len(self._cells)))
        first: list[FloatArray] = [np.empty(0)] * len(waiting)  # of the step that was certified
        for _ in range(_STARTS):
            starts = [lot.start for lot in self._lots]
            robots = self._scheme.robots(starts)
            partners = self._pursuers(rng)
            nominal = self._nominal(robots, partners, 0, rng)
            sight = self._look(nominal, robots, partners, [], 0, rng)
            for k in waiting:
                first[k] = nominal[k]
            decided = {k: self._ask(self._guard(k), k, robots, sight) for k in waiting}
            waiting = [k for k, d in decided.items() if d.uncertified or d.static_uncertified]
            if not waiting:
                return robots, np.stack(first)
            for k in waiting:
                self._counts[k].vain_starts += 1
                self._lots[k] = self._lot(k, rng)
        where = self._lots[waiting[0]].world.name
        raise ConfigurationError(
            f"attack: {self._name} in {where}: expected a start that the filter certifies, found "
            f"none in {_STARTS}; give it more room or smaller errors."
        )

    def _pursuers(self, rng: np.random.Generator) -> Pursuers:
        """Return the partners where they start."""
        bounds = [lot.bounds for lot in self._lots]
        shape = len(bounds), len(bounds[0])
        return Pursuers(
            self._opponents,
            np.stack([lot.positions for lot in self._lots]),
            np.stack([lot.velocities for lot in self._lots]),
            np.array([[one.max_speed for one in k] for k in bounds]).reshape(shape),
            np.array([[one.max_accel for one in k] for k in bounds]).reshape(shape),
            rng,
        )

    def _lot(self, k: int, rng: np.random.Generator) -> _Lot:
        """Draw an episode."""
        config, scheme, cell = self._config, self._scheme, self._cells[k]
        radius, error, dim = config.radius, config.position_error, cell.dim
        world = cell.world
        if isinstance(world, str):
            world = draw_world(world, dim, radius, rng)
        x = world.place(radius + error + 1e-3, rng)
        motion = _within(dim, rng) * float(rng.choice((0.0, 0.5, 1.0)))
        if scheme.claim == "passive":
            motion *= 0.0
        start = scheme.robots.draw(
            Draw(scheme.response, x, motion, radius, cell.dt, config.delay_steps, scheme.claim, rng)
        )
        bounds: list[PartnerBound] = []
        positions, velocities = np.zeros((2, cell.partners, dim))
        for j in range(cell.partners):
            accel = float(rng.uniform(0.3, 8.0)) if rng.random() < 0.7 else math.inf
            if isinstance(start.model, AccelerationModel):
                accel = start.model.limit * float(rng.uniform(0.1, 0.95))
            fastest = float(rng.uniform(*scheme.speeds)) * start.model.escape_speed(cell.dt)
            bounds.append(PartnerBound(f"p{j}", fastest, accel))
            apart = 2.0 * (radius + error) + float(rng.uniform(0.01, 2.0))
            positions[j] = x + apart * unit(rng.normal(size=dim))
            velocities[j] = fastest * _within(dim, rng)
        self._goals[k] = world.place(radius, rng)
        return _Lot(world, start, bounds, positions, velocities)

    def _guard(self, k: int) -> Any:
        """Return a filter for an episode that has not begun."""
        config, scheme, lot = self._config, self._scheme, self._lots[k]
        return self._make_guard(
            lot.start.model,
            lot.bounds,
            dt=self._cells[k].dt,
            obstacles=lot.world.obstacles,
            guarantee=None if scheme.claim == "walls" else scheme.claim,
            margin_m=0.0,
            position_error_m=config.position_error,
            velocity_error=config.velocity_error,
            contact_speed=scheme.contact_speed,
        )

    def _look(
        self,
        nominal: FloatArray,
        robots: Any,
        partners: Pursuers,
        packets: list[tuple[FloatArray, FloatArray]],
        step: int,
        rng: np.random.Generator,
    ) -> Sight:
        """Add a packet and return those of some age, wrong by the declared errors."""
        config, x = self._config, robots.position
        packets.append((partners.positions, partners.velocities))
        del packets[: -1 - config.max_age_steps]
        ages = rng.integers(len(packets), size=partners.positions.shape[:2])
        rows, columns = np.indices(ages.shape)
        positions, velocities = (
            np.stack(part)[-1 - ages, rows, columns] for part in zip(*packets, strict=True)
        )
        wrong = self._opponents.errors(Motion(x, robots.velocity, positions, velocities), step)
        shift = np.zeros_like(x)
        if config.position_error > 0.0:
            turns = 1.0 - 2.0 * (step * np.arange(len(x)) % 2)  # every second one keeps its error
            away = [-lot.world.nearest(at) for lot, at in zip(self._lots, x, strict=True)]
            shift = config.position_error * turns[:, None] * np.stack(away)
        return Sight(
            nominal,
            x + shift,
            robots.velocity,
            positions + shift[:, None] + config.position_error * wrong[0],
            velocities + config.velocity_error * wrong[1],
            ages * self._dt[:, None],
        )

    def _ask(self, guard: Any, k: int, robots: Any, sight: Sight) -> Any:
        """Return what the filter of an episode decides."""
        radius, uids = self._config.radius, [bound.uid for bound in self._lots[k].bounds]
        agents = sight.agents(k, uids, radius, radius)
        if isinstance(robots, UnicyclePlant):
            turning = {"heading": float(robots.heading[k]), "yaw_rate": float(robots.yaw_rate[k])}
            seen = sight.ego_position[k], sight.ego_velocity[k], radius
            agents[EGO] = WheeledSnapshot(*seen, **turning)
        return guard.filter(sight.nominal[k], agents)

    def step(self) -> None:
        """Play one step of every episode."""
        step, robots, start = len(self._decisions), self._robots, self._robots.position
        for k in np.flatnonzero(length(self._goals - start) < _GOAL_M).tolist():
            self._counts[k].goals += 1
            self._goals[k] = self._lots[k].world.place(self._config.radius, self._rng)
        partners = self._partners
        nominal = self._nominal(robots, partners, step, self._rng) if step else self._first
        sight = self._look(nominal, robots, partners, self._packets, step, self._rng)
        self._motions.append(self._motion())
        decisions = [self._ask(guard, k, robots, sight) for k, guard in enumerate(self._guards)]
        self._decisions.append(decisions)
        path = robots.step(np.stack([one.action for one in decisions]), self._dt)
        self._path.append(path)
        self._others.append(partners.step(start, path, self._dt, sight.positions, sight.ages_s))

    def _motion(self) -> Motion:
        """Return where everybody is now."""
        robots, partners = self._robots, self._partners
        return Motion(robots.position, robots.velocity, partners.positions, partners.velocities)

    def _nominal(
        self, robots: Any, partners: Pursuers, step: int, rng: np.random.Generator
    ) -> FloatArray:
        """Return what the robots want to do, shape (B, A)."""
        ways = self._goals - robots.position
        for k, kind in enumerate(self._nominals):
            x, world = robots.position[k], self._lots[k].world
            if kind == "random":
                ways[k] = rng.normal(size=len(x))
            elif kind == "partner" and self._cells[k].partners:
                ways[k] = partners.positions[k, 0] - x
            elif kind == "wall" and len(world.obstacles):
                ways[k] = world.nearest(x)
            elif kind == "circle":
                ways[k] = 0.0
                ways[k, :2] = math.cos(0.15 * step), math.sin(0.15 * step)
        fastest = np.array([lot.start.model.max_speed for lot in self._lots])
        return robots.act(fastest[:, None] * unit(ways), self._dt)

    def judged(self) -> list[tuple[EpisodeRecord, AttackCounts]]:
        """Return every episode and what happened in it, judged by the exact motion."""
        path, others = np.concatenate(self._path), np.concatenate(self._others)
        return [self._judged(k, path[:, k], others[:, k]) for k in range(len(self._cells))]

    def _judged(
        self, k: int, path: FloatArray, others: FloatArray
    ) -> tuple[EpisodeRecord, AttackCounts]:
        """Judge an episode by positions at every instant, (T S + 1, d) and (T S + 1, N, d)."""
        counts, lot, cell = self._counts[k], self._lots[k], self._cells[k]
        radius, claim, span = self._config.radius, self._scheme.claim, cell.dt / SAMPLES
        decisions = [decided[k] for decided in self._decisions]
        uncertified, unpromised = np.array(
            [(bool(one.uncertified), bool(one.static_uncertified)) for one in decisions]
        ).T  # (T,) each
        counts.uncertified = int(uncertified.sum())
        counts.static_uncertified = int(unpromised.sum())
        counts.sources.update(one.backup for one in decisions)
        low, high = np.array(lot.start.model.action_box())
        actions = np.stack([one.action for one in decisions])  # (T, A)
        excessive = ((actions < low - REST) | (actions > high + REST)).any(axis=1)
        counts.excessive_steps = int(excessive.sum())
        walls = (lot.world.gap(path[1:]) - radius).reshape(-1, SAMPLES).min(axis=1)  # (T,)
        counts.min_wall_m = float(walls.min())
        counts.wall_contacts = int((walls < CONTACT_M).sum())
        distance = length(others - path[:, None])  # (T S + 1, N)
        gaps = distance.min(axis=1, initial=math.inf) - 2.0 * radius
        touching = gaps < CONTACT_M
        counts.touched_episodes = int(touching.any())
        of_steps = gaps[1:].reshape(-1, SAMPLES).min(axis=1)  # (T,)
        broken = excessive | (walls < CONTACT_M)
        if self._config.position_error == 0.0:
            broken |= unpromised
        if claim == "escape":
            certified_contacts, exits = ~uncertified & (of_steps < CONTACT_M), self._exits(k)
            counts.min_gap_m = float(of_steps[~uncertified].min(initial=math.inf))
            counts.certified_contacts = int(certified_contacts.sum())
            counts.exited_steps = int((~uncertified & exits).sum())
            broken |= certified_contacts | ~uncertified & exits
            if not len(lot.world.obstacles):
                broken |= uncertified
        speed = length(np.diff(path, axis=0)) / span
        in_contact = np.where(touching[:-1] & touching[1:], speed, 0.0)
        counts.largest_contact_speed = float(in_contact.max())
        fast = in_contact.reshape(-1, SAMPLES).max(axis=1) > self._scheme.contact_speed + REST
        counts.fast_contacts = int(fast.sum())
        if claim == "passive":
            broken |= fast
        at_first = float(speed[touching[1:].argmax()]) if touching.any() else 0.0
        said = {BROKEN: broken}
        said |= {STATIC: unpromised} if len(lot.world.obstacles) else {}
        said |= {UNCERTIFIED: uncertified} if cell.partners else {}
        said |= {
            source: np.array([one.backup == source for one in decisions])
            for source in counts.sources
        }
        record = EpisodeRecord(
            summary={
                "scheme": self._name,
                "world": lot.world.name,
                "dim": cell.dim,
                "dt_s": cell.dt,
                "nominal": self._nominals[k],
                "pursuits": self._opponents.names(k),
                **counts.to_jsonable(),
            },
            # Broken claims come first, then contacts by the robot's speed, then the smallest gap;
            # what follows the first contact is of bodies that pass through each other.
            rank=(
                -float(broken.any()),
                -max(at_first - REST, 0.0),
                min(counts.min_wall_m, float(gaps.min())),
            ),
            scene=f"{self._config.robot} robot, {self._name} in “{lot.world.name}”, {cell.dim}-D, "
            f"control step {cell.dt:g} s",
            nominal_name=self._nominals[k],
            adversary_names=self._opponents.names(k),
            dt=span,
            radii=(radius, radius),
            ego_path=path,
            partner_paths=others,
            nearest=np.minimum(distance[:-1], distance[1:]),
            obstacles=lot.world.obstacles,
            curves={"speed": speed},
            quantity="speed / (m/s)",
            shades={name: np.repeat(steps, SAMPLES) for name, steps in said.items()},
        )
        return record, counts

    def _exits(self, k: int) -> BoolArray:
        """Return which steps began or ended outside the safe set of accelerations, (T,)."""
        model, dt = self._lots[k].start.model, self._cells[k].dt
        if not isinstance(model, AccelerationModel):
            return np.zeros(len(self._decisions), dtype=np.bool_)
        push, contact_m = self._lots[k].bounds[0].max_accel, 2.0 * self._config.radius
        condition = Condition(
            plant="zoh",
            dt=dt,
            alpha=model.limit - push,
            push=push,
            relative_accel=model.limit + push,
            contact_m=contact_m,
            gamma=1.0,
            box=model.limit,
        )
        motions = [*self._motions, self._motion()]
        offset = np.stack([motion.offset[k, 0] for motion in motions])
        relative = np.stack([motion.relative[k, 0] for motion in motions])
        distance = length(offset)
        closing = -(offset * relative).sum(axis=1) / np.maximum(distance, 1e-12)
        outside = distance < condition.bound_m(closing) + _EXIT
        return outside[:-1] | outside[1:]


def _within(dim: int, rng: np.random.Generator) -> FloatArray:
    """Return a random vector of at most length one, (d,)."""
    return unit(rng.normal(size=dim)) * rng.uniform(0.1, 1.0)
