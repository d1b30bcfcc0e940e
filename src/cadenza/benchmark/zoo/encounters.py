"""Encounters: an ego meets one partner again and again, and remembers it or not.

Folder:   ``encounters`` of a matrix, one sealed file for each ego and partner; all of them together
          are ``encounters.json``, see `cadenza.evaluation.encounters`.
Episodes: encounter e of series i of seed s starts from the number i E + e of the stream of s, with
          the memory kept and with it reset. The partner begins every encounter anew.
Resume:   a finished pair is not played again.
Axes:     N = series, E = encounters, T = times, S = what an ego remembers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.cells import EvaluationPlan, initial_state_seed
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.executor import Job, JobProgress, default_workers, run_jobs
from cadenza.benchmark.lanes import has_lanes, open_lanes, play_lanes
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, NetworkPolicy, load_policy
from cadenza.benchmark.tasks import TaskSpec, adopt, get_task
from cadenza.benchmark.zoo.matrix import cluster_of, policies_of
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import IntegrityError
from cadenza.core.files import atomic_write_json, make_folder, remove_temporaries
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.core.types import Observation
from cadenza.evaluation.encounters import Encounters, EncounterSeries
from cadenza.evaluation.results import EpisodeResult
from cadenza.partners.registry import outside_modules

ENCOUNTERS_FOLDER: Final = "encounters"
ENCOUNTERS_JSON: Final = "encounters.json"
#: Series of each seed, and times at which progress is noted.
SERIES: Final = 4
TIMES: Final = 20
_KIND: Final = "encounters"


class CarriedMemory:
    """Plays a policy that goes into an encounter with what the last one left in the same row.

    Rows that play on after their episode, because others have not ended, leave nothing.
    """

    def __init__(self, policy: NetworkPolicy, rows: int) -> None:
        self._policy = policy
        self._carried = np.zeros((rows, policy.memory.shape[1]), dtype=np.float32)
        self._playing, self._over = set[int](), set[int]()

    def reset(self, *, seed: int) -> None:
        """Go into the next encounter."""
        del seed
        for row in self._playing:
            self._keep(row)
        self._policy.memory = self._carried.copy()
        self._playing, self._over = set[int](), set[int]()

    def reset_row(self, row: int, *, seed: int) -> None:
        """Begin the encounter of one row; where it has been, the row plays on for nothing."""
        if row in self._playing:
            self._keep(row)
            self._policy.reset_row(row, seed=seed)
        self._playing.add(row)

    def act(self, obs: Observation) -> NDArray[Any]:
        """See `NetworkPolicy`."""
        self._playing.add(0)
        return self._policy.act(obs)

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """See `NetworkPolicy`."""
        return self._policy.act_rows(states)

    def _keep(self, row: int) -> None:
        if row not in self._over:
            self._carried[row] = self._policy.memory[row]
            self._over.add(row)


class _Traced:
    """An environment whose rewards are noted."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.rewards: list[NDArray[np.float64]] = []

    def __getattr__(self, name: str) -> Any:
        """Forward what is not noted."""
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        """Advance one step."""
        result = self._env.step(action)
        self.rewards.append(np.atleast_1d(np.asarray(result[1], dtype=np.float64)))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class EncounterFactory:
    """Builds the runner of one process; travels to workers as plain values."""

    folder: Path
    plan: bytes
    artifacts_root: Path
    encounters: int
    series: int
    task: TaskSpec
    modules: tuple[str, ...]

    def __call__(self) -> "EncounterRunner":
        """Return the runner."""
        adopt(self.task, self.modules)
        return EncounterRunner(self, EvaluationPlan.from_bytes(self.plan))


class EncounterRunner:
    """Plays all encounters of one ego with one partner, and stores them."""

    def __init__(self, made: EncounterFactory, plan: EvaluationPlan) -> None:
        self._made, self._plan = made, plan
        self._success = get_task(plan.env.task, plan.task_version).has_success
        self._times = times_of(plan)

    def __call__(self, key: str, /) -> None:
        """Play the pair ``key``, ego and partner by name."""
        ego, _, partner = key.partition("/")
        remembers: list[bool] = []
        with single_torch_thread():
            reset, progress = self._play(ego, partner, remembers, keep=False)
            kept = None
            if any(remembers):
                kept, _ = self._play(ego, partner, remembers, keep=True)
        found = EncounterSeries(
            ego=ego,
            partner=partner,
            seeds=tuple(seed for seed, _ in self._series()),
            reset=_table(reset),
            kept=None if kept is None else _table(kept),
            progress=_table(progress),
        )
        path = self._made.folder / _file_of(key)
        write_sealed_json(path, found.model_dump(mode="json"), kind=_KIND)

    def _series(self) -> list[tuple[int, int]]:
        """Return seed and number of each series."""
        return [(seed, i) for seed in self._plan.seeds for i in range(self._made.series)]

    def _tags(self, ego: str, partner: str, encounter: int) -> list[EpisodeTag]:
        condition = self._plan.conditions[0].name
        count = self._made.encounters
        return [
            EpisodeTag(
                seed=seed,
                episode_idx=i * count + encounter,
                initial_state_seed=initial_state_seed(seed, i * count + encounter),
                policy=ego,
                condition=condition,
                partner=partner,
            )
            for seed, i in self._series()
        ]

    def _play(
        self, ego: str, partner: str, remembers: list[bool], *, keep: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return scores (N, E) and progress in the first encounters (N, T)."""
        plan, rows = self._plan, max(2, len(self._series()))
        entry, condition, played = plan.partner(partner), plan.conditions[0], plan.policy(ego)

        def make_policy(seat: EgoSeat) -> EgoPolicy:
            policy = load_policy(
                played.source,
                seat=seat,
                artifacts_root=self._made.artifacts_root,
                weights_sha256=played.weights_sha256,
            )
            if not isinstance(policy, NetworkPolicy) or not policy.memory.shape[1]:
                return policy
            remembers.append(True)
            return CarriedMemory(policy, rows) if keep else policy

        parts: dict[str, Any] = {
            "env": condition.env_of(plan.env),
            "partner": condition.partner_of(entry.partner),
            "weights_sha256": entry.weights_sha256,
            "safety": condition.safety,
            "make_policy": make_policy,
        }
        scores = np.zeros((len(self._series()), self._made.encounters))
        progress = np.zeros((len(scores), len(self._times)))
        if has_lanes(get_task(plan.env.task), parts["env"], parts["partner"]):
            with open_lanes(lanes=rows, **parts) as world:
                for e in range(self._made.encounters):
                    traced = _Traced(world.env)
                    tags = self._tags(ego, partner, e)
                    for row, episode in play_lanes(replace(world, env=traced), tags):
                        scores[row, e] = self._score(episode)
                        if e == 0:
                            rewards = [step[row] for step in traced.rewards]
                            progress[row] = self._progress(episode, rewards)
            return scores, progress
        for row in range(len(scores)):
            tags = [self._tags(ego, partner, e)[row] for e in range(self._made.encounters)]
            with open_world(root_seed=tags[0].seed, **parts) as world:
                for e, tag in enumerate(tags):
                    traced = _Traced(world.env)
                    episode = run_episode(replace(world, env=traced), tag)
                    scores[row, e] = self._score(episode)
                    if e == 0:
                        rewards = [float(step[0]) for step in traced.rewards]
                        progress[row] = self._progress(episode, rewards)
        return scores, progress

    def _score(self, episode: EpisodeResult) -> float:
        return float(episode.success) if self._success else episode.episode_return or 0.0

    def _progress(self, episode: EpisodeResult, rewards: Sequence[float]) -> list[float]:
        """Return the score so far at each time, (T,)."""
        steps = episode.n_steps or 0
        if self._success:
            return [float(episode.success and steps <= time) for time in self._times]
        so_far = np.cumsum(rewards[:steps])
        return [float(so_far[min(time, steps) - 1]) for time in self._times]


def times_of(plan: EvaluationPlan) -> tuple[int, ...]:
    """Return the control steps at which progress is noted."""
    horizon = plan.env.episode_length
    return tuple(sorted({max(1, round(k * horizon / TIMES)) for k in range(1, TIMES + 1)}))


def play_encounters(
    plan: EvaluationPlan,
    *,
    egos: Sequence[str],
    out: Path,
    artifacts_root: Path,
    encounters: int,
    workers: int | None = None,
    progress: JobProgress | None = None,
) -> Encounters:
    """Play the encounters of some egos of a matrix with all of its partners.

    Args:
        plan: The matrix's.
        egos: Some of its egos.
        out: Folder of the matrix.
        artifacts_root: Folder that the plan's addresses are relative to.
        encounters: E, at least 2.
        workers: Processes; by default one per core.
        progress: Called with (pairs done, pairs in all, the last one).
    """
    folder = out / ENCOUNTERS_FOLDER
    make_folder(folder)
    task = get_task(plan.env.task, plan.task_version)
    policies = [policy for ego in egos for policy in policies_of(plan)[ego]]
    keys = [f"{policy}/{entry.name}" for policy in policies for entry in plan.partners]
    missing = [key for key in keys if _stored(folder, key, encounters) is None]
    factory = EncounterFactory(
        folder=folder,
        plan=plan.to_bytes(),
        artifacts_root=artifacts_root.resolve(),
        encounters=encounters,
        series=SERIES,
        task=task,
        modules=outside_modules({entry.partner.class_name for entry in plan.partners}),
    )
    done_before = len(keys) - len(missing)

    def report(done: int, _: int, label: str) -> None:
        if progress is not None:
            progress(done_before + done, len(keys), label)

    report(0, 0, "")
    run_jobs(
        [Job(key=key, label=f"encounters {key}") for key in missing],
        factory,
        workers=default_workers() if workers is None else workers,
        progress=report,
    )
    remove_temporaries(folder)
    found = Encounters(
        task=task.slug,
        metric="success" if task.has_success else "return",
        times=times_of(plan),
        series=tuple(_told(plan, _read(folder, key)) for key in keys),
    )
    atomic_write_json(out / ENCOUNTERS_JSON, found.model_dump(mode="json"))
    return found


def _stored(folder: Path, key: str, encounters: int) -> EncounterSeries | None:
    """Return what was stored of a pair; None if nothing, or of another number of encounters."""
    try:
        found = _read(folder, key)
    except IntegrityError:
        return None
    return found if len(found.reset[0]) == encounters else None


def _read(folder: Path, key: str) -> EncounterSeries:
    return EncounterSeries.model_validate(read_sealed_json(folder / _file_of(key), kind=_KIND))


def _told(plan: EvaluationPlan, series: EncounterSeries) -> EncounterSeries:
    """Return the series of a policy as its method's, whose clusters may be its training seeds."""
    policy, training = plan.policy(series.ego), cluster_of(plan, series.ego)
    seeds = series.seeds if training is None else (training,) * len(series.seeds)
    return series.model_copy(update={"ego": policy.method or policy.name, "seeds": seeds})


def _file_of(key: str) -> str:
    return f"{key.replace('/', '@')}.json"  # which no name has in it


def _table(values: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
