"""A base that takes velocities: the whole filter call, in free space, among obstacles, in a scan.

Ours:      `BackupFilter.filter`, from snapshots to action and record: checks, path of one step and
           of stopping after it against every obstacle, escape plan beside the partner, candidates.
           The base has a rate limit, which the peers' model of it (the command is the velocity)
           leaves out: they check the present state, we the motion until the base rests.
Peers:     cbfpy and cbfjax, jitted and warmed up, from NumPy arrays to a NumPy array: barriers
           |x - o| - R for every obstacle and for the partner, which moves at its present velocity;
           the speed limit is their box. Obstacles are constants of their compiled functions. Beside
           a scan, rows named "nearest point only" keep the barrier of that point alone, which
           switches from point to point; they are shown, not judged. Left out where they are
           not installed.
Scenes:    random states of the base and of the partner in one room of ten balls, or in one scan of
           360 points; in half of the scenes the nominal command is safe.
Protocol:  100 calls to warm up, 5 000 timed one by one (the peers 400); see `perf.timing`.

Usage:  python -m perf.bench_robots
"""

import importlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from cadenza.safety.backup import BackupFilter
from cadenza.safety.control_models import PartnerBound, VelocityModel
from cadenza.safety.geometry import Ball, Obstacles, Points
from cadenza.safety.snapshot import AgentSnapshot
from perf.timing import Row, measure, print_table

#: Least ratio of the medians that we promise to the faster peer.
AIM = 2.0
SCENES = 200
REPEATS, WARMUP, PEER_REPEATS = 5_000, 100, 400
DT, RADIUS, TOP, RATE, PARTNER_SPEED, GAIN = 0.1, 0.2, 1.0, 2.0, 0.8, 5.0
BALL_M, POINT_M = 0.3, 0.05
#: Obstacles of each kind of scene.
KINDS = {"free space": 0, "ten obstacles": 10, "a scan of 360 points": 360}


@dataclass(frozen=True)
class Scene:
    """One call: the command and the agents."""

    nominal: np.ndarray
    agents: dict[str, AgentSnapshot]


def layout(count: int) -> tuple[np.ndarray, float]:
    """Return the centers of the obstacles, shape (K, 2), and their radius, m."""
    if count == 10:
        rng = np.random.default_rng(0)
        return rng.uniform(-2.5, 2.5, size=(10, 2)), BALL_M
    angles = np.linspace(0.0, 2.0 * math.pi, count, endpoint=False)
    distance = 1.5 + 0.8 * np.abs(np.sin(1.5 * angles))
    return distance[:, None] * np.stack((np.cos(angles), np.sin(angles)), axis=1), POINT_M


def shapes_of(count: int) -> Obstacles:
    """Return the obstacles as the filter takes them."""
    centers, radius = layout(count)
    shapes: list[Any] = (
        [Points(centers, radius)] if count > 10 else [Ball(c, radius) for c in centers]
    )
    return Obstacles(shapes)


def draw(rng: np.random.Generator) -> Scene:
    """Return a state; the nominal command and the base's velocity are slower than the limit."""

    def vector(longest: float) -> np.ndarray:
        way = rng.normal(size=2)
        return way * longest * rng.random() ** 0.5 / np.linalg.norm(way)

    x = rng.uniform(-1.5, 1.5, size=2)
    away = vector(1.0)
    away *= rng.uniform(0.6, 2.0) / np.linalg.norm(away)
    return Scene(
        vector(TOP),
        {
            "ego": AgentSnapshot(x, vector(0.5 * TOP), RADIUS),
            "person": AgentSnapshot(x + away, vector(PARTNER_SPEED), RADIUS),
        },
    )


def fresh_filter() -> BackupFilter:
    robot = VelocityModel("ego", 2, TOP, RATE)
    return BackupFilter(robot, [PartnerBound("person", PARTNER_SPEED)], dt=DT)


def scenes_of(count: int, obstacles: Obstacles) -> list[Scene]:
    """Return as many scenes whose command is safe as others, in random order."""
    rng = np.random.default_rng(count)
    found: dict[bool, list[Scene]] = {True: [], False: []}
    while min(map(len, found.values())) < SCENES // 2:
        scene = draw(rng)
        step = fresh_filter().filter(scene.nominal, scene.agents, obstacles=obstacles)
        is_safe = step.backup == "none"
        if len(found[is_safe]) < SCENES // 2 and not step.static_uncertified:
            found[is_safe].append(scene)
    both = found[True] + found[False]
    return [both[k] for k in rng.permutation(len(both))]


def rows() -> list[Row]:
    """Return all measurements of robots that take velocities."""
    table: list[Row] = []
    for kind, count in KINDS.items():
        obstacles = shapes_of(count)
        scenes = scenes_of(count, obstacles)
        guard = fresh_filter()

        def call(
            scene: Scene, guard: BackupFilter = guard, obstacles: Obstacles = obstacles
        ) -> object:
            guard.reset()  # the scenes do not follow each other
            return guard.filter(scene.nominal, scene.agents, obstacles=obstacles)

        ours = measure(over(scenes, call), REPEATS, warmup=WARMUP)
        name = f"velocity base, {kind}"
        found = {}
        for peer, make in PEERS.items():
            for nearest in (False, True) if count > 10 else (False,):
                if (solve := make(count, nearest)) is not None:
                    label = f"{peer}, nearest point only" if nearest else peer
                    timing = measure(over(scenes, solve), PEER_REPEATS, warmup=WARMUP)
                    found[label] = (timing.p50, nearest)
        fastest = min((p50 for p50, nearest in found.values() if not nearest), default=None)
        for peer, (p50, nearest) in found.items():
            aim = AIM if p50 == fastest and not nearest else None
            table.append(Row(f"{name}: p50", ours.p50, p50, aim=aim, peer_name=peer))
        if not found:
            table.append(Row(f"{name}: p50", ours.p50))
        table.append(Row(f"{name}: p99", ours.p99))
    return table


def over(scenes: list[Scene], use: Callable[[Scene], object]) -> Callable[[], object]:
    """Return a call that takes the next scene each time."""
    endless = cycle(scenes)
    return lambda: use(next(endless))


def state_of(scene: Scene) -> np.ndarray:
    """Return what the peers read: places of base and person, the person's velocity, the command."""
    ego, person = scene.agents["ego"], scene.agents["person"]
    return np.concatenate((ego.position, person.position, person.velocity, scene.nominal))


def jax_modules(name: str) -> tuple[Any, Any] | None:
    """Return a peer and JAX's arrays, or None where they are not installed."""
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return importlib.import_module(name), importlib.import_module("jax.numpy")
    except ImportError:
        print(f"note: {name} is not installed (pip install 'cadenza[bench-jax]'); it is left out")
        return None


def barriers_of(count: int, nearest: bool, jnp: Any) -> list[Callable[[Any], Any]]:
    """Return h of all obstacles as a vector, or of each, or of the nearest; and of the partner."""
    centers, radius = layout(count)

    def of_all(z: Any) -> Any:
        return jnp.sqrt(((z[:2] - centers) ** 2).sum(axis=1)) - radius - RADIUS

    def of_partner(z: Any) -> Any:
        return jnp.linalg.norm(z[:2] - z[2:4]) - 2.0 * RADIUS

    if not count:
        return [of_partner]
    return [(lambda z: of_all(z).min()) if nearest else of_all, of_partner]


def motion(jnp: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return f and g: the base moves as commanded, the partner at its velocity."""
    zeros = jnp.zeros(2)
    matrix = jnp.concatenate((jnp.eye(2), jnp.zeros((6, 2))))
    return lambda z: jnp.concatenate((zeros, z[4:6], zeros, zeros)), lambda _: matrix


def cbfpy_filter(count: int, nearest: bool) -> Callable[[Scene], np.ndarray] | None:
    """Return cbfpy's filter."""
    modules = jax_modules("cbfpy")
    if modules is None:
        return None
    cbfs, jnp = modules
    barriers, (drift, control) = barriers_of(count, nearest, jnp), motion(jnp)

    class Base(cbfs.CBFConfig):
        def __init__(self) -> None:
            limit = np.full(2, TOP)
            super().__init__(n=8, m=2, u_min=-limit, u_max=limit, relax_qp=False)

        def f(self, z: Any) -> Any:
            return drift(z)

        def g(self, z: Any) -> Any:
            return control(z)

        def h_1(self, z: Any) -> Any:
            return jnp.concatenate([jnp.atleast_1d(barrier(z)) for barrier in barriers])

        def alpha(self, h: Any) -> Any:
            return GAIN * h

    cbf = cbfs.CBF.from_config(Base())
    return lambda scene: np.asarray(cbf.safety_filter(state_of(scene), scene.nominal))


def cbfjax_filter(count: int, nearest: bool) -> Callable[[Scene], np.ndarray] | None:
    """Return cbfjax's filter."""
    modules = jax_modules("cbfjax")
    if modules is None:
        return None
    cbfs, jnp = modules
    if count > 10 and not nearest:
        return None  # it takes one function per barrier, and minutes to compile hundreds
    centers, radius = layout(count)

    def of_ball(center: np.ndarray) -> Callable[[Any], Any]:
        return lambda z: jnp.linalg.norm(z[:2] - center) - radius - RADIUS

    each = barriers_of(count, nearest, jnp)
    if count == 10:
        each = [*map(of_ball, centers), each[-1]]
    base = importlib.import_module("cbfjax.dynamics.base_dynamic")
    barriers: dict[str, Any] = {
        f"h{k}": {"type": "func", "h": h, "rel_deg": 1, "alphas": ()} for k, h in enumerate(each)
    }
    names = list(barriers)
    barriers["all"] = {"type": "multi_barrier", "barriers": names}
    guard = cbfs.from_config(
        {
            "dynamics": base.CustomDynamics(8, 2, *motion(jnp)),
            "barriers": barriers,
            "filter": {
                "type": "min_interv_input_const_qp",
                "barrier": "all",
                "action_dim": 2,
                "alpha": lambda h: GAIN * h,
                "control_low": (-TOP, -TOP),
                "control_high": (TOP, TOP),
                "params": {"slacked": False, "qp_solver": "qpax"},
                "desired_control": lambda z: z[6:8],
            },
        }
    ).filter
    state = guard.get_init_state()
    return lambda scene: np.asarray(guard.optimal_control(jnp.asarray(state_of(scene)), state)[0])


PEERS: dict[str, Callable[[int, bool], Callable[[Scene], np.ndarray] | None]] = {
    "cbfpy, jitted": cbfpy_filter,
    "cbfjax, jitted": cbfjax_filter,
}


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
