"""Batched safety: projections and whole filter steps per second, two threads.

Ours:      `project_batch` on float64 batches, the batch size stated in the name; `BatchedEgoFilter`
           from states to actions and flags; `BatchedBackupFilter` the same for bases that take
           velocities, in a room with a partner.
Peers:     one environment after the other: DAQP and Clarabel through qpsolvers, as users call
           them, on the same problems; for the filter, the filter of one environment.
Problems:  mixed: every second environment needs another action; worst: all of them do, and the
           one-row answer never suffices. Rows and box leave a solution, since the peers have no
           answer otherwise.
Protocol:  torch on two threads; per figure of ours the median of five sustained rates over a third
           of a second each, after a warm-up of one such run: on a shared machine a single one may
           fall into somebody else's burst. Peers: one sustained rate over half a second.

Usage:  python -m perf.bench_batched
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import qpsolvers
import scipy.sparse as sp
import torch

from cadenza.safety.backup import BackupFilter, BatchedBackupFilter
from cadenza.safety.batched.filter import BatchedEgoFilter
from cadenza.safety.batched.projection import INACTIVE, INFEASIBLE, OPTIMAL, project_batch
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import Bounds, SafetyState
from cadenza.safety.control_models import (
    DoubleIntegratorControlModel,
    PartnerBound,
    VelocityModel,
)
from cadenza.safety.geometry import Box, HalfSpace, Shape, Sphere
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot
from perf.timing import Row, measure_rate, print_table

#: Least ratio to DAQP that we promise on two cores, by number of rows.
AIMS = {1: 15.0, 3: 1.0}
#: Environments per call of `project_batch`, and of the filter.
BATCH, FILTER_BATCH = 8192, 4096
#: Environments of the filter with a backup.
BACKUP_BATCHES = (1, 16, 256, 4096)
THREADS = 2
BOX = 2.0
DT = 0.05
PARTNER_ACCEL = 0.7
#: Runs per figure of ours, and their length, s.
RUNS, RUN_S = 5, 1.0 / 3.0
#: Problems that the peers solve one by one.
PEER_PROBLEMS = 300


@dataclass(frozen=True)
class Problems:
    """A batch of projections: u (B, n), A (B, m, n), b (B, m)."""

    u: torch.Tensor
    A: torch.Tensor
    b: torch.Tensor


def rows() -> list[Row]:
    """Return all measurements of the batched safety layer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return [
            *projection_rows(2, 1),
            *projection_rows(3, 1),
            *projection_rows(2, 3),
            *projection_rows(3, 3),
            *(filter_row(partners, dim) for partners, dim in ((1, 2), (3, 2), (3, 3))),
            *(backup_row(count) for count in BACKUP_BATCHES),
        ]
    finally:
        torch.set_num_threads(threads)


def projection_rows(n: int, m: int) -> list[Row]:
    """Time one size against both peers, mixed and in the worst case."""
    result: list[Row] = []
    for name, problems in (("mixed", mixed(n, m)), ("worst", worst(n, m))):
        label = f"projection, {m} row{'s' if m > 1 else ''}, n = {n}, {name}, batch {BATCH}"
        ours = median_rate(
            lambda p=problems: project_batch(p.u, p.A, p.b, -BOX, BOX), work_per_call=BATCH
        )
        for peer in ("daqp", "clarabel"):
            theirs = peer_rate(problems, peer)
            result.append(
                Row(
                    label,
                    ours,
                    theirs,
                    unit="1/s",
                    aim=AIMS[m] if peer == "daqp" else None,
                    better="higher",
                    peer_name=f"qpsolvers + {peer}, one by one",
                )
            )
    return result


def median_rate(call: Callable[[], object], *, work_per_call: float) -> float:
    """Return the median of `RUNS` sustained rates of ``call``, after one that does not count."""
    rates = [
        measure_rate(call, work_per_call=work_per_call, seconds=RUN_S) for _ in range(RUNS + 1)
    ]
    return float(np.median(rates[1:]))


def random_problems(n: int, m: int, count: int, seed: int) -> Problems:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    A = normal(count, m, n)
    A /= A.norm(dim=2, keepdim=True)
    inside = (torch.rand(count, n, generator=generator, dtype=torch.float64) * 2.0 - 1.0) * BOX
    room = torch.rand(count, m, generator=generator, dtype=torch.float64) * 0.3
    return Problems(normal(count, n) * 1.5, A, (A * inside.unsqueeze(1)).sum(-1) + room)


def mixed(n: int, m: int) -> Problems:
    """Return as many problems with an active row as without, in random order."""
    problems = random_problems(n, m, 12 * BATCH, seed=n + 10 * m)
    status = project_batch(problems.u, problems.A, problems.b, -BOX, BOX).status
    idle = (status == INACTIVE).nonzero().squeeze(1)[: BATCH // 2]
    busy = (status == OPTIMAL).nonzero().squeeze(1)[: BATCH // 2]
    order = torch.cat((idle, busy)) if idle.numel() == BATCH // 2 else busy.new_tensor([])
    if order.numel() != BATCH:
        raise RuntimeError(f"bench_batched: too few problems of one kind for n = {n}, m = {m}.")
    order = order[torch.randperm(BATCH, generator=torch.Generator().manual_seed(0))]
    return Problems(problems.u[order], problems.A[order], problems.b[order])


def worst(n: int, m: int) -> Problems:
    """Return problems whose solution holds two rows, or, with one row, all active."""
    problems = random_problems(n, m, 40 * BATCH, seed=1 + n + 10 * m)
    answer = project_batch(problems.u, problems.A, problems.b, -BOX, BOX)
    held = ((problems.A * answer.u.unsqueeze(1)).sum(-1) - problems.b).abs() < 1e-9
    busy = (held.sum(1) >= min(m, 2)) & (answer.status == OPTIMAL)
    order = busy.nonzero().squeeze(1)[:BATCH]
    if order.numel() != BATCH:
        raise RuntimeError(f"bench_batched: too few hard problems for n = {n}, m = {m}.")
    return Problems(problems.u[order], problems.A[order], problems.b[order])


def peer_rate(problems: Problems, solver: str) -> float:
    """Return problems per second of a loop over qpsolvers."""
    n = problems.u.shape[1]
    bounds = np.full(n, BOX)
    sparse = solver == "clarabel"
    P = sp.csc_matrix(np.eye(n)) if sparse else np.eye(n)
    tasks = [
        (-u, sp.csc_matrix(A) if sparse else A, b)
        for u, A, b in zip(
            problems.u[:PEER_PROBLEMS].numpy(),
            problems.A[:PEER_PROBLEMS].numpy(),
            problems.b[:PEER_PROBLEMS].numpy(),
            strict=True,
        )
    ]

    def solve_all() -> None:
        for q, G, h in tasks:
            qpsolvers.solve_qp(P, q, G, h, lb=-bounds, ub=bounds, solver=solver)

    return measure_rate(solve_all, work_per_call=PEER_PROBLEMS, seconds=0.5)


def filter_row(partners: int, dim: int) -> Row:
    """Time the batched filter and the filter of one environment on the same scenes."""
    rng = np.random.default_rng(partners + dim)
    uids = [f"p{k}" for k in range(partners)]
    models = {"ego": DoubleIntegratorControlModel("ego", dim)} | {
        uid: DoubleIntegratorControlModel(uid, dim, capacity=PARTNER_ACCEL) for uid in uids
    }
    bounds = Bounds(BOX, BOX, 1.0, 0.0, 0.0)
    guard = BatchedEgoFilter(
        ego_model=models["ego"],
        partner_models=[models[uid] for uid in uids],
        bounds=bounds,
        dt=DT,
    )
    shape = (FILTER_BATCH, partners, dim)
    directions = rng.normal(size=shape)
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    scene = [
        rng.uniform(-BOX, BOX, size=(FILTER_BATCH, dim)),
        np.zeros((FILTER_BATCH, dim)),
        rng.normal(size=(FILTER_BATCH, dim)) * 0.4,
        directions * rng.uniform(0.5, 2.5, size=(*shape[:2], 1)),
        rng.normal(size=shape) * 0.3,
    ]
    tensors = [torch.tensor(values) for values in scene]
    radii = torch.full((partners,), 0.2, dtype=torch.float64)
    status = guard.filter(*tensors, 0.2, radii).status
    single = single_calls(scene, uids, models, bounds)
    ours = median_rate(lambda: guard.filter(*tensors, 0.2, radii), work_per_call=FILTER_BATCH)
    theirs = measure_rate(single, work_per_call=PEER_PROBLEMS, seconds=0.5)
    active = float((status > INACTIVE).double().mean())
    lost = float((status >= INFEASIBLE).double().mean())
    return Row(
        f"filter, {partners} partner{'s' if partners > 1 else ''}, d = {dim}, {active:.0%} active, "
        f"{lost:.0%} infeasible, batch {FILTER_BATCH}",
        ours,
        theirs,
        unit="1/s",
        better="higher",
        peer_name="our filter of one environment",
    )


def single_calls(
    scene: list[np.ndarray],
    uids: list[str],
    models: dict[str, DoubleIntegratorControlModel],
    bounds: Bounds,
) -> Callable[[], None]:
    """Return a call that filters the first scenes one by one; building snapshots is not counted."""
    guard = ExpCBFQP.ego_only(control_models=models)
    state = SafetyState({("ego", uid): 0.0 for uid in uids})
    nominal, place, speed, places, speeds = scene
    calls = []
    for i in range(PEER_PROBLEMS):
        agents = {"ego": AgentSnapshot(place[i], speed[i], 0.2)}
        for k, uid in enumerate(uids):
            agents[uid] = AgentSnapshot(places[i, k], speeds[i, k], 0.2)
        calls.append((nominal[i], agents))

    def filter_all() -> None:
        for action, agents in calls:
            guard.filter(
                action,
                {"agent_states": agents},
                state,
                bounds,
                ego_uid="ego",
                partner_predicted_states=agents,
                dt=DT,
            )

    return filter_all


def backup_row(count: int) -> Row:
    """Time the filter with a backup for bases that take velocities, together and one by one."""
    rng = np.random.default_rng(count)
    walls: list[Shape] = [HalfSpace(s * axis, -3.0) for axis in np.eye(2) for s in (1.0, -1.0)]
    walls += [Box((1.0, 1.0), (0.4, 0.3), angle=0.3), Sphere((-1.0, 0.5), 0.3)]

    def guard() -> BackupFilter:
        base = VelocityModel("ego", 2, 1.0, max_accel=BOX)
        return BackupFilter(base, [PartnerBound("p0", 0.8)], dt=DT, obstacles=walls)

    places = rng.uniform(-2.5, 2.5, (count, 2, 2))
    speeds = rng.normal(size=(count, 2, 2)) * 0.4
    speeds *= np.minimum(1.0, 0.8 / np.linalg.norm(speeds, axis=2, keepdims=True))  # as declared
    nominal = rng.uniform(-1.0, 1.0, (count, 2))
    radii = np.full(2, 0.2)
    agents = AgentBatch(uids=("ego", "p0"), positions=places, velocities=speeds, radii=radii)
    together = BatchedBackupFilter(guard(), count)
    changed = float((together.filter(nominal, agents).backup != "none").mean())
    alone = [guard() for _ in range(min(count, PEER_PROBLEMS))]
    scenes = [
        {uid: AgentSnapshot(places[i, k], speeds[i, k], 0.2) for k, uid in enumerate(("ego", "p0"))}
        for i in range(len(alone))
    ]

    def decide_all() -> None:
        for one, action, scene in zip(alone, nominal, scenes, strict=False):
            one.filter(action, scene)

    ours = median_rate(lambda: together.filter(nominal, agents), work_per_call=count)
    theirs = measure_rate(decide_all, work_per_call=len(alone), seconds=0.5)
    return Row(
        f"velocity base with a backup, 1 partner, 6 obstacles, {changed:.0%} changed, "
        f"batch {count}",
        ours,
        theirs,
        unit="1/s",
        better="higher",
        peer_name="our filter of one environment",
    )


if __name__ == "__main__":
    started = time.perf_counter()
    print_table((__doc__ or "").splitlines()[0], rows())
    print(f"{time.perf_counter() - started:.0f} s")
