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
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.progress import ProgressReport
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.seeding import Substream, derive_substream
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier.adversaries import PURSUITS, Motion, Opponents, length, unit
from cadenza.safety.verifier.conditions import Condition
from cadenza.safety.verifier.config import AttackConfig
from cadenza.safety.verifier.episodes import EpisodeRecord
from cadenza.safety.verifier.report import AttackCounts, AttackReport, AttackResult
from cadenza.safety.verifier.robots import (
    DIMS,
    SAMPLES,
    SCHEMES,
    AccelerationModel,
    Draw,
    Robots,
    Start,
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
    here = None if config.map is None else mapped(config.map)
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
                )
                results.setdefault((name, world), blank).counts.add(counts)
                if worst is None or episode.rank < worst.rank:
                    worst = episode
    if worst is None:
        raise AssertionError("an attack has at least one episode")
    origin = compute_run_metadata(
        seed=config.seed,
        run_kind="safety_attack",
        repo_root=None,
        config_fingerprint=sha256_bytes(canonical_json(config.to_jsonable())),
    )
    return AttackReport(config=config, origin=origin, results=list(results.values()), worst=worst)


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


class _Sight(NamedTuple):
    """What filters are told in one step."""

    ego: FloatArray  # Where robots believe to be, shape (B, d), m
    positions: FloatArray  # Of partners as measured, shape (B, N, d), m
    velocities: FloatArray  # The same, m/s
    ages_s: FloatArray  # Shape (B, N), s


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
        self._packets: list[tuple[FloatArray, FloatArray]] = []
        self._lots, self._robots = self._draw_starts(starts)
        self._guards = [self._guard(k) for k in range(len(cells))]
        bounds = [lot.bounds for lot in self._lots]
        shape = chosen.shape
        self._max_speed = np.array([[one.max_speed for one in k] for k in bounds]).reshape(shape)
        self._max_accel = np.array([[one.max_accel for one in k] for k in bounds]).reshape(shape)
        self._goals = np.stack([lot.world.place(config.radius, self._rng) for lot in self._lots])
        #: Robots and partners at every instant, first at the start: (B, d) and (B, N, d) each.
        self._path, self._others = [self._robots.position], [self._positions]
        #: Velocities at the begin of every step, and decisions in it.
        self._motions: list[Motion] = []
        self._decisions: list[list[Any]] = []

    def _draw_starts(self, rng: np.random.Generator) -> tuple[list[_Lot], Robots]:
        """Return starts that the filters certify, and the robots there.

        Raises:
            ConfigurationError: None is found for one of the episodes.
        """
        waiting = list(range(len(self._cells)))
        self._lots = [self._lot(k, rng) for k in waiting]
        for _ in range(_STARTS):
            robots: Robots = self._scheme.robots(
                [lot.start for lot in self._lots], self._config.delay_steps
            )
            self._positions = np.stack([lot.positions for lot in self._lots])
            self._velocities = np.stack([lot.velocities for lot in self._lots])
            self._packets.clear()
            sight = self._look(robots, 0)
            rest = robots.act(np.zeros_like(robots.position), self._dt)
            decided = {k: self._ask(self._guard(k), k, rest[k], robots, sight) for k in waiting}
            waiting = [k for k, d in decided.items() if d.uncertified or d.static_uncertified]
            if not waiting:
                self._packets.clear()
                return self._lots, robots
            for k in waiting:
                self._counts[k].vain_starts += 1
                self._lots[k] = self._lot(k, rng)
        where = self._lots[waiting[0]].world.name
        raise ConfigurationError(
            f"attack: {self._name} in {where}: expected a start that the filter certifies, found "
            f"none in {_STARTS}; give it more room or smaller errors."
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
        delay_s = config.delay_steps * cell.dt
        start: Start = scheme.robots.draw(Draw(scheme.response, x, motion, radius, delay_s, rng))
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

    def _look(self, robots: Robots, step: int) -> _Sight:
        """Return packets of some age, wrong by the declared errors."""
        config, x = self._config, robots.position
        self._packets.append((self._positions, self._velocities))
        del self._packets[: -1 - config.max_age_steps]
        ages = self._rng.integers(len(self._packets), size=self._positions.shape[:2])
        rows, columns = np.indices(ages.shape)
        positions, velocities = (
            np.stack(part)[-1 - ages, rows, columns] for part in zip(*self._packets, strict=True)
        )
        wrong = self._opponents.errors(Motion(x, robots.velocity, positions, velocities), step)
        shift = np.zeros_like(x)
        if config.position_error > 0.0:
            turns = 1.0 - 2.0 * (step % 2 * np.arange(len(x)) % 2)  # every second one keeps it
            away = [-lot.world.nearest(at) for lot, at in zip(self._lots, x, strict=True)]
            shift = config.position_error * turns[:, None] * np.stack(away)
        return _Sight(
            x + shift,
            positions + shift[:, None] + config.position_error * wrong[0],
            velocities + config.velocity_error * wrong[1],
            ages * self._dt[:, None],
        )

    def _ask(self, guard: Any, k: int, nominal: FloatArray, robots: Robots, sight: _Sight) -> Any:
        """Return what the filter of an episode decides."""
        radius = self._config.radius
        agents = {"ego": robots.look(k, sight.ego[k], radius)}
        for j, bound in enumerate(self._lots[k].bounds):
            age_s = float(sight.ages_s[k, j])
            seen = sight.positions[k, j], sight.velocities[k, j]
            agents[bound.uid] = AgentSnapshot(*seen, radius, age_s)
        return guard.filter(nominal, agents)

    def step(self) -> None:
        """Play one step of every episode."""
        step, robots, start = len(self._decisions), self._robots, self._robots.position
        for k in np.flatnonzero(length(self._goals - start) < _GOAL_M).tolist():
            self._counts[k].goals += 1
            self._goals[k] = self._lots[k].world.place(self._config.radius, self._rng)
        wishes = np.stack([self._wish(k, start[k], step) for k in range(len(start))])
        nominal = robots.act(wishes, self._dt)
        sight = self._look(robots, step)
        self._motions.append(Motion(start, robots.velocity, self._positions, self._velocities))
        decisions = [
            self._ask(guard, k, nominal[k], robots, sight) for k, guard in enumerate(self._guards)
        ]
        self._decisions.append(decisions)
        path = robots.step(np.stack([one.action for one in decisions]), self._dt)
        self._path += list(path)
        self._move_partners(start, path, sight, step)

    def _wish(self, k: int, x: FloatArray, step: int) -> FloatArray:
        """Return the velocity that a robot wants, shape (d,), m/s."""
        kind, way = self._nominals[k], self._goals[k] - x
        if kind == "random":
            way = self._rng.normal(size=len(x))
        elif kind == "partner" and self._positions.shape[1]:
            way = self._positions[k, 0] - x
        elif kind == "wall" and len(self._lots[k].world.obstacles):
            way = self._lots[k].world.nearest(x)
        elif kind == "circle":
            way = np.zeros(len(x))
            way[:2] = math.cos(0.15 * step), math.sin(0.15 * step)
        return self._lots[k].start.model.max_speed * unit(way)

    def _move_partners(self, start: FloatArray, path: FloatArray, sight: _Sight, step: int) -> None:
        """Move the partners through one step: robots move from ``start`` along ``path``."""
        if not self._positions.shape[1]:
            self._others += [self._positions] * SAMPLES
            return
        stride, span = SAMPLES // CHOICES, (self._dt / CHOICES)[:, None, None]
        mean = (path[-1] - start) / self._dt[:, None]
        pairs_dt = np.repeat(self._dt, self._positions.shape[1])
        at_once = np.isinf(self._max_accel)[..., None]
        for choice in range(CHOICES):
            here = start if choice == 0 else path[choice * stride - 1]
            wanted = self._opponents.commands(
                Motion(here, mean, self._positions, self._velocities),
                sight.positions,
                sight.ages_s,
                step + choice / CHOICES,
                self._rng,
                dt=pairs_dt,
                bound=self._max_speed.reshape(-1),
            )
            change = wanted - self._velocities
            most = self._max_accel[..., None] * span
            end = self._velocities + change * np.minimum(
                1.0, most / np.maximum(length(change), 1e-300)[..., None]
            )
            begin = np.where(at_once, end, self._velocities)
            for part in range(1, stride + 1):
                s = part / stride
                way = begin * span * s + (end - begin) * (0.5 * span * s * s)
                self._others.append(self._positions + way)
            self._positions, self._velocities = self._others[-1], end

    def judged(self) -> list[tuple[EpisodeRecord, AttackCounts]]:
        """Return every episode and what happened in it, judged by the exact motion."""
        path, others = np.stack(self._path), np.stack(self._others)
        return [self._judged(k, path[:, k], others[:, k]) for k in range(len(self._cells))]

    def _judged(
        self, k: int, path: FloatArray, others: FloatArray
    ) -> tuple[EpisodeRecord, AttackCounts]:
        """Judge an episode by positions at every instant, (T S + 1, d) and (T S + 1, N, d)."""
        counts, lot, cell = self._counts[k], self._lots[k], self._cells[k]
        radius, claim, span = self._config.radius, self._scheme.claim, cell.dt / SAMPLES
        decisions = [decided[k] for decided in self._decisions]
        uncertified = np.array([bool(one.uncertified) for one in decisions])  # (T,)
        counts.uncertified = int(uncertified.sum())
        counts.static_uncertified = sum(bool(one.static_uncertified) for one in decisions)
        counts.sources.update(one.backup for one in decisions)
        walls = (lot.world.gap(path[1:]) - radius).reshape(-1, SAMPLES).min(axis=1)  # (T,)
        counts.min_wall_m = float(walls.min())
        counts.wall_contacts = int((walls < CONTACT_M).sum())
        distance = length(others - path[:, None])  # (T S + 1, N)
        gaps = distance.min(axis=1, initial=math.inf) - 2.0 * radius
        touching = gaps < CONTACT_M
        counts.touched_episodes = int(touching.any())
        of_steps = gaps[1:].reshape(-1, SAMPLES).min(axis=1)  # (T,)
        if claim == "escape":
            counts.min_gap_m = float(of_steps[~uncertified].min(initial=math.inf))
            counts.certified_contacts = int((~uncertified & (of_steps < CONTACT_M)).sum())
            counts.exited_steps = self._exits(k, ~uncertified)
        speed = length(np.diff(path, axis=0)) / span
        in_contact = np.where(touching[:-1] & touching[1:], speed, 0.0)
        counts.largest_contact_speed = float(in_contact.max())
        fast = in_contact.reshape(-1, SAMPLES).max(axis=1) > self._scheme.contact_speed + REST
        counts.fast_contacts = int(fast.sum())
        summary = {
            "scheme": self._name,
            "world": lot.world.name,
            "dim": cell.dim,
            "dt_s": cell.dt,
            "nominal": self._nominals[k],
            "pursuits": self._opponents.names(k),
            **counts.to_jsonable(),
        }
        sources = {
            source: np.repeat([one.backup == source for one in decisions], SAMPLES)
            for source in counts.sources
        }
        record = EpisodeRecord(
            summary=summary,
            # Broken claims come first, then the smallest gap.
            rank=(
                -float(counts.wall_contacts + counts.certified_contacts > 0),
                -float(claim == "passive" and counts.fast_contacts > 0),
                min(counts.min_wall_m, counts.min_gap_m),
            ),
            scene=f"{self._name} in “{lot.world.name}”, {cell.dim}-D, control step {cell.dt:g} s: "
            f"{counts.wall_contacts} steps with an obstacle touched, {counts.certified_contacts} "
            "certified ones with a partner",
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
            shades={"uncertified": np.repeat(uncertified, SAMPLES), **sources},
        )
        return record, counts

    def _exits(self, k: int, certified: np.ndarray) -> int:
        """Return how many certified steps began or ended outside the safe set of accelerations."""
        model, dt = self._lots[k].start.model, self._cells[k].dt
        if not isinstance(model, AccelerationModel):
            return 0
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
        end = Motion(self._path[-1], self._robots.velocity, self._positions, self._velocities)
        motions = [*self._motions, end]
        offset = np.stack([motion.offset[k, 0] for motion in motions])
        relative = np.stack([motion.relative[k, 0] for motion in motions])
        distance = length(offset)
        closing = -(offset * relative).sum(axis=1) / np.maximum(distance, 1e-12)
        outside = distance < condition.bound_m(closing) + _EXIT
        return int((certified & (outside[:-1] | outside[1:])).sum())


def _within(dim: int, rng: np.random.Generator) -> FloatArray:
    """Return a random vector of at most length one, (d,)."""
    return unit(rng.normal(size=dim)) * rng.uniform(0.1, 1.0)
