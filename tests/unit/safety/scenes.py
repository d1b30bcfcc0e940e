"""Small worlds for the safety tests: agents by hand, and plants that integrate exactly."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import Bounds, SafetyState, canonical_pair_key
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentSnapshot

RADIUS = 0.2
CONTACT = 2.0 * RADIUS


def agent(position, velocity=None, radius=RADIUS, age_s=0.0):
    velocity = np.zeros(len(position)) if velocity is None else velocity
    return AgentSnapshot(np.array(position, float), np.array(velocity, float), radius, age_s)


def box(linf=2.0, capacity=None):
    return Bounds(linf, linf if capacity is None else capacity, 1.0, 0.0, 0.0)


def models(partner_accel=0.5, dim=2, partners=("p",)):
    result = {"ego": DoubleIntegratorControlModel("ego", dim)}
    for uid in partners:
        result[uid] = DoubleIntegratorControlModel(uid, dim, capacity=partner_accel)
    return result


def ego_filter(partner_accel=0.5, dim=2, partners=("p",), **options):
    return ExpCBFQP.ego_only(control_models=models(partner_accel, dim, partners), **options)


def slack(partners=("p",), fill=0.0):
    return SafetyState({canonical_pair_key("ego", uid): fill for uid in partners})


def call(guard, u, agents, *, bounds=None, state=None, dt=0.05, predicted=None):
    """Filter ``u`` for "ego" among ``agents``; partners are predicted to keep their velocity."""
    partners = tuple(uid for uid in agents if uid != "ego")
    return guard.filter(
        np.array(u, dtype=np.float64) if not isinstance(u, np.ndarray) else u,
        {"agent_states": agents},
        slack(partners) if state is None else state,
        box() if bounds is None else bounds,
        ego_uid="ego",
        partner_predicted_states={uid: agents[uid] for uid in partners}
        if predicted is None
        else predicted,
        dt=dt,
    )


def hypot(vector):
    return math.hypot(*vector)


@dataclass
class Duel:
    """Ego (index 0) and partners as exact double integrators, in plain numbers.

    `step` returns the smallest ego-partner distance at ``substeps`` instants within the step.
    """

    positions: list[list[float]]
    velocities: list[list[float]]
    dt: float
    plant: str = "zoh"
    substeps: int = 4
    radius: float = RADIUS
    uids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uids = ["ego", *(f"p{i}" for i in range(1, len(self.positions)))]

    @property
    def partners(self) -> tuple[str, ...]:
        return tuple(self.uids[1:])

    def snapshots(self) -> dict[str, AgentSnapshot]:
        return {
            uid: agent(p, v, self.radius)
            for uid, p, v in zip(self.uids, self.positions, self.velocities, strict=True)
        }

    def toward_ego(self, index=1):
        """Return the unit vector from partner ``index`` to the ego."""
        offset = [a - b for a, b in zip(self.positions[0], self.positions[index], strict=True)]
        length = hypot(offset)
        return [x / length for x in offset]

    def step(self, accelerations) -> float:
        nearest = math.inf
        h = self.dt / self.substeps
        for k in range(self.substeps):
            for p, v, a in zip(self.positions, self.velocities, accelerations, strict=True):
                for axis, a_k in enumerate(a):
                    if self.plant == "zoh":
                        p[axis] += v[axis] * h + 0.5 * a_k * h * h
                        v[axis] += a_k * h
                    else:
                        if k == 0:
                            v[axis] += a_k * self.dt
                        p[axis] += v[axis] * h
            nearest = min(
                nearest,
                *(
                    hypot([a - b for a, b in zip(self.positions[0], p, strict=True)])
                    for p in self.positions[1:]
                ),
            )
        return nearest


def safe_speed(excess, alpha, dt):
    """Return the largest closing speed of the safe set of ``alpha``."""
    return 0.5 * (-alpha * dt + math.sqrt((alpha * dt) ** 2 + 8.0 * alpha * max(excess, 0.0)))


def safe_duel(rng, dim, dt, plant, alpha, margin=0.0):
    """Return a pair in the safe set, half of the time on its boundary, sometimes in contact."""
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    excess = 0.0 if rng.random() < 0.1 else rng.uniform(0.0, 1.0)
    velocity = rng.normal(size=dim) * 1.5
    limit = safe_speed(excess, alpha, dt)
    closing = -velocity @ direction
    if closing > limit or rng.random() < 0.5:
        velocity += (closing - limit) * direction
    share = rng.normal(size=dim)
    return Duel(
        [((CONTACT + margin + excess) * direction).tolist(), [0.0] * dim],
        [(velocity + share).tolist(), share.tolist()],
        dt,
        plant,
    )


class GuardedEnv:
    """The safety hooks of an env, around a `Duel`."""

    plant = "zoh"

    def __init__(self, duel: Duel, *, partner_accel=0.5, linf=2.0) -> None:
        self.duel = duel
        self.control_timestep = duel.dt
        self._partner_accel = partner_accel
        self._linf = linf

    def build_agent_snapshots(self) -> dict[str, AgentSnapshot]:
        return self.duel.snapshots()

    def build_control_models(self) -> dict[str, Any]:
        dim = len(self.duel.positions[0])
        return models(self._partner_accel, dim, self.duel.partners)

    def build_bounds(self) -> Bounds:
        return box(self._linf)
