"""Draw what must not be built: each naive way beside the filter with a backup, from the same start.

    python -m tools.draw_counterexamples        # docs/images/counterexamples/*.png, about a minute

Motion is exact, partners move second, gaps are taken 32 times per step. What is drawn is measured:
the numbers in the pictures are those of the captions in docs/which-robot.md. Run from the
repository root.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch

from cadenza.core.seeding import derive_substream
from cadenza.safety import (
    AgentSnapshot,
    Bounds,
    DoubleIntegratorControlModel,
    ExpCBFQP,
    PartnerBound,
    SafetyOptions,
    SafetyRuntime,
    SafetyState,
    UnicycleModel,
    VelocityModel,
    WheeledSnapshot,
)
from cadenza.safety.backup import BackupFilter, unicycle
from cadenza.safety.geometry import Ball, HalfSpace, Obstacles, Shape
from cadenza.safety.maps import draw_obstacles
from cadenza.safety.verifier.adversaries import PURSUITS
from cadenza.safety.verifier.attacks import Pursuer
from cadenza.safety.verifier.robots import (
    SAMPLES,
    AccelerationPlant,
    UnicyclePlant,
    VelocityPlant,
)

FOLDER = Path("docs/images/counterexamples")
RADIUS, TOP, RATE = 0.2, 1.0, 2.0
ROBOT, PARTNER, NAIVE, BUILT = "#1d4ed8", "#c2410c", "#b91c1c", "#0f766e"
#: Discs drawn along a path.
GHOSTS = 8
#: Episodes among which the deepest contact of the clipped row is looked for.
EPISODES = 120

#: Robots that are driven here.
Plant = AccelerationPlant | VelocityPlant | UnicyclePlant
#: Returns the action of a step from the robot and its partners.
Policy = Callable[[Any, Sequence[Pursuer]], Any]


@dataclass
class Run:
    """What one way came to: positions at every instant, and gaps to whatever is nearest."""

    dt: float
    obstacles: Obstacles
    path: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)  # Gaps to the nearest obstacle, m
    partners: list[float] = field(default_factory=list)  # Gaps to the nearest partner, m
    speeds: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> np.ndarray:
        """Gaps to whatever is nearest, m."""
        return np.minimum(self.walls, self.partners)

    @property
    def least(self) -> float:
        """Smallest gap, m."""
        return float(self.gaps.min())

    def touched(self) -> bool:
        """Return whether something overlaps by more than rounding."""
        return self.least < -1e-6


@dataclass
class Example:
    """One picture: titles, the two runs, and the part of the world that is shown."""

    title: str
    naive_title: str
    built_title: str
    naive: Run
    built: Run
    extent: tuple[float, float, float, float]  # x from, to, y from, to, m
    measured: str = "gaps"  # What is drawn over time: "gaps", "walls" (gaps to these) or "speeds"
    follows: bool = False  # Extent counts from where the robot is at the nearest moment


def play(
    robot: Plant,
    policy: Policy,
    *,
    dt: float,
    steps: int,
    partners: Sequence[Pursuer] = (),
    obstacles: Sequence[Shape] = (),
    until_contact: bool = False,
) -> Run:
    """Return what a policy comes to."""
    run = Run(dt, Obstacles(tuple(obstacles)))
    for _ in range(steps):
        before = robot.position
        path = robot.step(np.asarray(policy(robot, partners), float), dt)
        theirs = [partner.step(before, path, dt) for partner in partners]
        for k, point in enumerate(path):
            gap = float(run.obstacles.gaps(point)[0].min(initial=math.inf)) - RADIUS
            apart = [math.dist(point, other[k]) - 2.0 * RADIUS for other in theirs]
            last = run.path[-1] if run.path else before
            run.speeds.append(math.dist(point, last) * SAMPLES / dt)
            run.path.append(point)
            run.others.append([other[k] for other in theirs])
            run.walls.append(gap)
            run.partners.append(min(apart, default=math.inf))
        if until_contact and run.least < -0.01:
            break
    return run


def look(robot: Any, partners: Sequence[Pursuer]) -> dict[str, AgentSnapshot]:
    """Return what a filter is told."""
    scene = {"ego": AgentSnapshot(robot.position, robot.velocity, RADIUS)}
    if isinstance(robot, UnicyclePlant):
        turning = {"heading": float(robot.heading), "yaw_rate": float(robot.yaw_rate)}
        scene["ego"] = WheeledSnapshot(robot.position, robot.velocity, RADIUS, **turning)
    for one in partners:
        scene[one.bound.uid] = AgentSnapshot(one.position, one.velocity, RADIUS)
    return scene


def filtered(guard: BackupFilter, nominal: Policy) -> Policy:
    """Return the policy behind a filter."""
    return lambda robot, partners: (
        guard.filter(np.asarray(nominal(robot, partners), float), look(robot, partners)).action
    )


def base(limit: str = "norm") -> VelocityModel:
    """Return the base of all examples, or what a filter takes it for."""
    return VelocityModel("ego", 2, TOP, RATE if limit == "norm" else math.inf, limit=limit)


def at(x: float, y: float = 0.0) -> VelocityPlant:
    """Return a base at rest; whatever a filter believes, it follows at a rate."""
    return VelocityPlant((x, y), (0.0, 0.0), max_accel=RATE)


def pursuer(bound: PartnerBound, kind: str, place: tuple[float, float], seed: int = 0) -> Pursuer:
    """Return a partner that stands still at first."""
    rng = derive_substream("tools.counterexamples", root_seed=seed).default_rng()
    return Pursuer(bound, PURSUITS[kind], place, rng)


def walls_as_partners() -> Example:
    """Two walls of a funnel, balls of 100 m, as partners that stand still, and as obstacles."""
    limit, dt, clear = 2.0, 0.05, 0.04
    sides = [np.array([-math.sin(0.1), sign * math.cos(0.1)]) for sign in (1.0, -1.0)]
    centers = {uid: -(100.0 + RADIUS + clear) * n for uid, n in zip("ab", sides, strict=True)}
    shapes = [Ball(center, 100.0) for center in centers.values()]

    def policy(uids: str, **options: Any) -> Policy:
        models = {"ego": DoubleIntegratorControlModel("ego", 2)}
        models |= {uid: DoubleIntegratorControlModel(uid, 2, capacity=0.0) for uid in uids}
        runtime = SafetyRuntime(
            ego_uid="ego",
            control_models=models,
            bounds=Bounds(limit, limit, 1.0, 0.0, 0.0),
            control_timestep=dt,
            options=SafetyOptions(margin_m=0.0, **options),
        )
        still = {uid: centers.get(uid, np.array((-8.0, 0.0))) for uid in uids}
        scene = {
            uid: AgentSnapshot(place, np.zeros(2), 100.0 if uid in centers else RADIUS)
            for uid, place in still.items()
        }
        return lambda robot, _: runtime.step(np.array((limit, 0.0)), look(robot, ()) | scene).action

    runs = [
        play(
            AccelerationPlant((0.0, 0.0), (1.0, 0.0)),
            chosen,
            dt=dt,
            steps=50,
            obstacles=shapes,
        )
        for chosen in (policy("ab"), policy("p", obstacles=tuple(shapes)))
    ]
    return Example(
        "A funnel of 0.2 rad, an acceleration of 2 m/s² straight into it",
        "walls are partners with rows",
        "walls are obstacles",
        *runs,
        (-0.3, 1.3, -0.45, 0.45),
    )


def clipped_to_the_speed_limit() -> Example:
    """The row of an acceleration robot on (v_cmd - v) / dt, its result clipped to the speed V."""
    dt, accel = 0.05, 1.0
    bound = PartnerBound("p0", TOP, accel)
    box = RATE / math.sqrt(2.0)
    models = {
        "ego": DoubleIntegratorControlModel("ego", 2, capacity=box),
        "p0": DoubleIntegratorControlModel("p0", 2, capacity=accel),
    }
    bounds = Bounds(box, box, 1.0, 0.0, 0.0)

    def naive(nominal: Policy) -> Policy:
        guard = ExpCBFQP.ego_only(control_models=models)

        def command(robot: Any, partners: Sequence[Pursuer]) -> np.ndarray:
            velocity, scene = np.array(robot.velocity), look(robot, partners)
            action, info = guard.filter(
                np.clip((np.array(nominal(robot, partners)) - velocity) / dt, -box, box),
                {"agent_states": scene},
                SafetyState({("ego", "p0"): 0.0}),
                bounds,
                ego_uid="ego",
                partner_predicted_states=scene,
                dt=dt,
            )
            claimed.append(not info["uncertified"])
            wanted = velocity + action * dt
            return wanted * min(1.0, TOP / max(float(np.linalg.norm(wanted)), 1e-12))

        return command

    claimed: list[bool] = []
    found: list[tuple[float, int, str, int]] = []
    for seed in range(EPISODES):
        kind = list(PURSUITS)[seed % len(PURSUITS)]
        claimed.clear()
        run = play(*starting(seed, naive), dt=dt, steps=150, partners=[met(seed, kind, bound)])
        if run.touched():
            found.append((run.least, seed, kind, claimed.index(False)))
    _, seed, kind, certified = min(found)
    say(f"clipped: {len(found)} of {EPISODES} episodes touch; {certified} certified steps drawn")
    built = filtering(base(), [bound], dt)
    runs = [
        play(*starting(seed, way), dt=dt, steps=150, partners=[met(seed, kind, bound)])
        for way in (naive, built)
    ]
    return Example(
        "A partner as fast as the base that accelerates at 1 m/s²",
        "the row of an acceleration robot, clipped to 1 m/s",
        "escape with a speed limit",
        *runs,
        (-0.9, 0.9, -0.6, 0.6),
        follows=True,
    )


def starting(seed: int, way: Callable[[Policy], Policy]) -> tuple[Plant, Policy]:
    """Return a base and a way to drive it: at the partner."""
    del seed

    def at_it(robot: Any, partners: Sequence[Pursuer]) -> np.ndarray:
        line = np.array(partners[0].position) - robot.position
        return 0.999 * TOP * line / max(float(np.linalg.norm(line)), 1e-9)

    return at(0.0), way(at_it)


def met(seed: int, kind: str, bound: PartnerBound) -> Pursuer:
    """Return a partner somewhere around."""
    rng = derive_substream("tools.counterexamples.place", root_seed=seed).default_rng()
    angle, away = rng.uniform(-math.pi, math.pi), rng.uniform(0.9, 2.0)
    return pursuer(bound, kind, (away * math.cos(angle), away * math.sin(angle)), seed)


def filtering(
    model: VelocityModel, partners: Sequence[PartnerBound], dt: float, **options: Any
) -> Callable[[Policy], Policy]:
    """Return what puts a policy behind a fresh filter."""
    return lambda nominal: filtered(
        BackupFilter(model, partners, dt=dt, margin_m=0.0, **options), nominal
    )


def taken_for_ideal() -> Example:
    """A base that follows at 2 m/s^2, and a filter that takes it to follow at once."""
    dt, wall = 0.1, HalfSpace((-1.0, 0.0), -1.0)

    def ahead(_robot: Any, _partners: Sequence[Pursuer]) -> tuple[float, float]:
        return (TOP, 0.0)

    runs = [
        play(
            at(-0.8),
            filtering(base(limit), (), dt, obstacles=[wall])(ahead),
            dt=dt,
            steps=30,
            obstacles=[wall],
        )
        for limit in ("none", "norm")
    ]
    return Example(
        "A wall ahead, the base is commanded 1 m/s",
        "a model that follows at once",
        "the base's own rate, 2 m/s²",
        *runs,
        (-1.1, 1.3, -0.7, 0.7),
    )


def faster_partner() -> Example:
    """Fleeing from a partner of 1.2 V, and standing still when it comes."""
    dt, bound = 0.1, PartnerBound("p0", 1.2 * TOP)

    def flee(_robot: Any, _partners: Sequence[Pursuer]) -> tuple[float, float]:
        return (TOP, 0.0)

    runs = [
        play(
            at(0.0),
            way(flee),
            dt=dt,
            steps=90,
            partners=[pursuer(bound, "chase", (-1.0, 0.0))],
            until_contact=True,
        )
        for way in (lambda nominal: nominal, filtering(base(), [bound], dt))
    ]
    return Example(
        "A hunter of 1.2 m/s behind a base of 1 m/s",
        "flee, safe for the next second",
        "passive: rest before it arrives",
        *runs,
        (-1.4, 2.0, -0.8, 0.8),
        measured="speeds",
    )


def parked_on_the_disc() -> Example:
    """A slow differential drive, a goal behind a disc, and too little room for the point ahead."""
    dt, disc, goal = 0.1, Ball((1.5, 0.0), 0.5), np.array((3.0, 0.0))
    model = UnicycleModel("ego", TOP, TOP, 2.0, 0.5, 2.0, RADIUS, look_ahead_m=0.2)

    def pulled(robot: Any, _partners: Sequence[Pursuer]) -> tuple[float, float]:
        ahead = np.array((math.cos(robot.heading), math.sin(robot.heading)))
        way = goal - robot.position - 0.2 * ahead
        way = way / max(1.0, float(np.linalg.norm(way)))
        turn = (ahead[0] * way[1] - ahead[1] * way[0]) / 0.2
        return (float(way @ ahead), max(-2.0, min(turn, 2.0)))

    runs: list[Run] = []
    for room in (0.25, 0.5):
        robot = UnicyclePlant((0.0, 0.05), 0.1, accel=0.5, yaw_accel=2.0)
        with patch.object(unicycle, "CANDIDATE_ROOM", room):
            guard = BackupFilter(model, dt=dt, obstacles=[disc], margin_m=0.0)
            runs.append(play(robot, filtered(guard, pulled), dt=dt, steps=150, obstacles=[disc]))
    return Example(
        "A goal 3 m ahead, right behind a disc, for a differential drive of 0.5 m/s²",
        "rows leave a quarter of the look-ahead",
        "rows leave half of it",
        *runs,
        (-0.3, 3.3, -1.1, 1.1),
    )


def wall_behind() -> Example:
    """A partner as fast as the base drives it to a wall: to flee and to stop are two answers."""
    dt, bound, wall = 0.1, PartnerBound("p0", TOP), HalfSpace((1.0, 0.0), -1.0)

    def stay(_robot: Any, _partners: Sequence[Pursuer]) -> tuple[float, float]:
        return (0.0, 0.0)

    runs = [
        play(
            at(0.0),
            filtering(base(), [bound], dt, obstacles=obstacles)(stay),
            dt=dt,
            steps=18,
            partners=[pursuer(bound, "chase", (1.2, 0.0))],
            obstacles=[wall],
        )
        for obstacles in ((), (wall,))
    ]
    return Example(
        "A hunter as fast as the base in front, a wall behind",
        "one backup for both: flee",
        "walls first: stop before it",
        *runs,
        (-1.5, 1.5, -0.8, 0.8),
        measured="walls",
    )


EXAMPLES = {
    "walls-as-partners": walls_as_partners,
    "clipped": clipped_to_the_speed_limit,
    "taken-for-ideal": taken_for_ideal,
    "faster-partner": faster_partner,
    "parked": parked_on_the_disc,
    "wall-behind": wall_behind,
}


def draw(example: Example) -> Figure:
    """Return the picture: both runs, and their gaps over time."""
    figure = Figure(figsize=(10.0, 3.4), dpi=110, layout="constrained")
    panels: Any = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 0.9))
    ways = (
        (example.naive, example.naive_title, NAIVE),
        (example.built, example.built_title, BUILT),
    )
    for axes, (run, title, color) in zip(panels, ways, strict=False):
        scene(axes, run, example)
        axes.set_title(title, fontsize=9, color=color)
        over_time(panels[2], run, example, color)
    panels[0].set_ylabel("y / m", fontsize=8)
    panels[2].axhline(0.0, color="#64748b", lw=0.8)
    panels[2].set_xlabel("time / s", fontsize=8)
    panels[2].tick_params(labelsize=8)
    panels[2].spines[["top", "right"]].set_visible(False)
    if example.measured == "speeds":
        panels[2].set_ylabel("own speed / (m/s)", fontsize=8)
        panels[2].set_title("own speed, • at the contact", fontsize=9)
    else:
        least = [1e3 * min(getattr(run, example.measured)) + 0.0 for run, *_ in ways]
        panels[2].set_ylim(1.15 * min(*least, -10.0), max(100.0, -2.0 * min(least)))
        where = " to the wall" if example.measured == "walls" else ""
        panels[2].set_ylabel(f"gap{where} / mm; 0: contact", fontsize=8)
        left, right = (f"{round(number, 1) + 0.0:.1f}".replace("-", "−") for number in least)
        panels[2].set_title(f"smallest: {left} mm left, {right} mm right", fontsize=8)
    figure.suptitle(example.title, fontsize=10)
    legend(figure, example)
    return figure


def legend(figure: Figure, example: Example) -> None:
    """Say below the panels what is what."""

    def line(color: str, label: str, **style: Any) -> Line2D:
        return Line2D([], [], color=color, label=label, **style)

    disc = {"marker": "o", "ls": "", "ms": 8}
    handles: list[Any] = [line(ROBOT, "robot", **disc)]
    handles += [line(PARTNER, "partner", **disc)] if len(example.built.others[0]) else []
    handles += [Patch(color="#94a3b8", label="obstacle")] if len(example.built.obstacles) else []
    handles += [line(NAIVE, "left picture"), line(BUILT, "right picture")]
    figure.legend(
        handles=handles,
        title="discs: faint at equal times, solid at the nearest moment",
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
    )


def over_time(axes: Any, run: Run, example: Example, color: str) -> None:
    """Plot what is measured, and where a contact begins."""
    if example.measured != "speeds":
        axes.plot(times(run), 1e3 * np.array(getattr(run, example.measured)), color=color, lw=1.4)
        return
    axes.plot(times(run), run.speeds, color=color, lw=1.4)
    first = np.flatnonzero(run.gaps < 0.0)[0]
    axes.plot(times(run)[first], run.speeds[first], "o", color=color)


def times(run: Run) -> np.ndarray:
    """Return the instants of a run, s."""
    return run.dt / SAMPLES * np.arange(1, len(run.path) + 1)


def scene(axes: Any, run: Run, example: Example) -> None:
    """Draw obstacles, paths, discs at equal times and solid ones at the nearest moment."""
    moment = int(run.gaps.argmin())
    center = np.array(run.path[moment] if example.follows else (0.0, 0.0))
    corners = np.array(example.extent).reshape(2, 2).T + center  # (low, high), (x, y)
    draw_obstacles(axes, run.obstacles, corners)
    ghosts = np.linspace(0, len(run.path) - 1, GHOSTS).astype(int)
    lines = [(np.array(run.path), ROBOT)]
    if len(run.others[0]):
        lines.append((np.array(run.others)[:, 0], PARTNER))
    for line, color in lines:
        axes.plot(line[:, 0], line[:, 1], color=color, lw=1.0)
        for k, alpha in (*((k, 0.1) for k in ghosts), (moment, 0.55)):
            axes.add_patch(Circle(line[k], RADIUS, color=color, alpha=alpha, lw=0))
    axes.set(xlim=corners[:, 0], ylim=corners[:, 1], aspect="equal")
    axes.set_xlabel("x / m", fontsize=8)
    axes.tick_params(labelsize=8)


def say(line: str) -> None:
    """Print what was measured."""
    sys.stdout.write(line + "\n")


def main() -> None:
    """Draw the examples that are named, or all, and say what was measured."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or EXAMPLES:
        example = EXAMPLES[name]()
        draw(example).savefig(FOLDER / f"{name}.png", metadata={"Software": None})
        for way in ("naive", "built"):
            run: Run = getattr(example, way)
            moment = int(run.gaps.argmin())
            say(
                f"{name}, {way}: smallest gap {1e3 * run.least:+.2f} mm at "
                f"{times(run)[moment]:.2f} s, own speed then {run.speeds[moment]:.3f} m/s, ends at "
                f"({run.path[-1][0]:.2f}, {run.path[-1][1]:.2f})"
            )


if __name__ == "__main__":
    main()
