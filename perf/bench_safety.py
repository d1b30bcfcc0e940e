"""Safety filter: the whole call, half of the scenes with an active row.

Ours:      `filter()` from snapshots to action and record: checks, rows, projection, telemetry.
Peers:     Clarabel on the same rows, whose building is not counted; its time is the solve, called
           through qpsolvers, as users do, and natively, which spares the wrapper.
Scenes:    random partners around an ego in the plane, shuffled; scenes without an admissible
           action are left out, since the peer has no answer to them.
Protocol:  1 000 calls to warm up, 20 000 timed one by one; see `perf.timing`.

Usage:  python -m perf.bench_safety
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import clarabel
import numpy as np
import qpsolvers
import scipy.sparse as sp

from cadenza.envs.crossing import CrossingEnv
from cadenza.safety.authority import measure_authority, pair_parameters
from cadenza.safety.cbf import DEFAULT_CBF_GAMMA
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import Bounds, FilterInfo, SafetyState
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.filters.ego_rows import build_ego_rows
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot
from perf.timing import Row, measure, print_table

#: Numbers of partners, with the least ratios that we promise to qpsolvers and to native Clarabel.
AIMS = {1: (50.0, 6.0), 3: (30.0, 4.0), 5: (20.0, 2.5)}
SCENES = 400
REPEATS, WARMUP = 20_000, 1_000
#: The peer is slower and its distribution narrower.
PEER_REPEATS = 2_000
DT = 0.05
BOUNDS = Bounds(2.0, 2.0, 1.0, 0.0, 0.0)
PARTNER_ACCEL = 0.7
WRAPPED_PEER = "qpsolvers + Clarabel on the same rows"
NATIVE_PEER = "native Clarabel on the same rows"


@dataclass(frozen=True)
class Scene:
    """One call: action, agents, and what the peer gets: P, q, G, h and the box."""

    action: np.ndarray
    agents: dict[str, AgentSnapshot]
    problem: tuple[np.ndarray, ...]


class Crowd:
    """An ego with some partners: filter, its state, and random scenes."""

    def __init__(self, partners: int, *, age_s: float = 0.0, **options: Any) -> None:
        self.age_s = age_s
        self.uids = [f"p{k}" for k in range(partners)]
        self.models = {"ego": DoubleIntegratorControlModel("ego", 2)} | {
            uid: DoubleIntegratorControlModel(uid, 2, capacity=PARTNER_ACCEL) for uid in self.uids
        }
        self.guard = ExpCBFQP.ego_only(control_models=self.models, **options)
        self.state = SafetyState({("ego", uid): 0.0 for uid in self.uids})

    def call(self, scene: Scene) -> tuple[np.ndarray, FilterInfo]:
        return self.guard.filter(
            scene.action,
            {"agent_states": scene.agents},
            self.state,
            BOUNDS,
            ego_uid="ego",
            partner_predicted_states=scene.agents,
            dt=DT,
        )

    def scenes(self, rng: np.random.Generator) -> list[Scene]:
        """Return as many scenes with an active row as without, in random order."""
        found: dict[str, list[Scene]] = {"inactive": [], "optimal": []}
        while min(map(len, found.values())) < SCENES // 2:
            scene = self.draw(rng)
            status = self.call(scene)[1]["status"]
            if len(found.get(status, [None] * SCENES)) < SCENES // 2:
                found[status].append(scene)
        scenes = found["inactive"] + found["optimal"]
        return [scenes[k] for k in rng.permutation(len(scenes))]

    def draw(self, rng: np.random.Generator) -> Scene:
        agents = {"ego": AgentSnapshot(np.zeros(2), rng.normal(size=2) * 0.4, 0.2)}
        for uid, angle in zip(
            self.uids, rng.uniform(0.0, 2.0 * np.pi, len(self.uids)), strict=True
        ):
            spot = rng.uniform(0.45, 1.5) * np.array([np.cos(angle), np.sin(angle)])
            agents[uid] = AgentSnapshot(spot, rng.normal(size=2) * 0.3, 0.2, self.age_s)
        action = rng.uniform(-2.0, 2.0, size=2)
        return Scene(action, agents, self.problem(action, agents))

    def problem(
        self, action: np.ndarray, agents: dict[str, AgentSnapshot]
    ) -> tuple[np.ndarray, ...]:
        """Return the quadratic programme behind one call."""
        authority = measure_authority(self.models["ego"], agents["ego"], BOUNDS)
        pairs = [
            pair_parameters(
                authority, self.models[uid], BOUNDS, dt=DT, gamma=DEFAULT_CBF_GAMMA, plant="zoh"
            )
            for uid in self.uids
        ]
        partners = [agents[uid] for uid in self.uids]
        rows = build_ego_rows(
            agents["ego"],
            partners,
            partners,
            pairs,
            authority,
            EgoOnlyOptions(),
        )
        box = np.full(2, BOUNDS.action_linf_component)
        return -action, np.array(rows.a), np.array(rows.level), -box, box


def rows() -> list[Row]:
    """Return all measurements of the safety filter."""
    return [
        *(row for partners in AIMS for row in filter_rows(partners)),
        *(option_row(name, crowd) for name, crowd in with_options()),
        driver_row(),
    ]


def filter_rows(partners: int) -> list[Row]:
    """Time the filter and the peer on the same scenes."""
    crowd = Crowd(partners)
    scenes = crowd.scenes(np.random.default_rng(partners))
    ours = measure(over(scenes, crowd.call), REPEATS, warmup=WARMUP)
    wrapped = measure(over(scenes, solve_with_qpsolvers), PEER_REPEATS)
    native = measure(over(scenes, solve_natively), PEER_REPEATS)
    name, (aim, native_aim) = f"filter, {partners} partner{'s' * (partners > 1)}", AIMS[partners]
    return [
        Row(f"{name}: p50", ours.p50, wrapped.p50, aim=aim, peer_name=WRAPPED_PEER),
        Row(f"{name}: p50", ours.p50, native.p50, aim=native_aim, peer_name=NATIVE_PEER),
        Row(f"{name}: p99", ours.p99, wrapped.p99, aim=aim, peer_name=WRAPPED_PEER),
    ]


def with_options() -> list[tuple[str, Crowd]]:
    """Return crowds of three whose filter does more than the default."""
    return [
        ("packets 0.1 s old", Crowd(3, age_s=0.1, max_age_s=0.1)),
        ("barrier wae", Crowd(3, barrier="wae")),
        ("shared rows", Crowd(3, budget_split="proportional")),
    ]


def option_row(name: str, crowd: Crowd) -> Row:
    """Time the filter alone."""
    scenes = crowd.scenes(np.random.default_rng(3))
    timing = measure(over(scenes, crowd.call), REPEATS, warmup=WARMUP)
    return Row(f"filter, 3 partners, {name}: p50", timing.p50)


def over(scenes: list[Scene], use: Callable[[Scene], object]) -> Callable[[], object]:
    """Return a call that takes the next scene each time."""
    endless = cycle(scenes)
    return lambda: use(next(endless))


#: The cost of every problem, in the form Clarabel wants.
P = sp.csc_matrix(np.eye(2))
SETTINGS = clarabel.DefaultSettings()
SETTINGS.verbose = False


def solve_with_qpsolvers(scene: Scene) -> object:
    q, G, h, lower, upper = scene.problem
    return qpsolvers.solve_qp(P, q, sp.csc_matrix(G), h, lb=lower, ub=upper, solver="clarabel")


def solve_natively(scene: Scene) -> object:
    q, G, h, lower, upper = scene.problem
    A = sp.csc_matrix(np.vstack([G, np.eye(2), -np.eye(2)]))
    b = np.concatenate([h, upper, -lower])
    cones = [clarabel.NonnegativeConeT(len(b))]
    return clarabel.DefaultSolver(P, q, A, b, cones, SETTINGS).solve()


def driver_row() -> Row:
    """Time one step of the driver on the crossing task: snapshots, conformal update, filter."""
    env = CrossingEnv()
    env.reset(seed=0)
    driver = SafetyDriver.from_env(env, ego_uid=env.ego_uid, options=SafetyOptions())
    action = np.zeros(2)  # what an ego at rest, in a scene that stands still, can have executed
    return Row("driver step on crossing: p50", measure(lambda: driver.step(action), REPEATS).p50)


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
