"""Encounters: an ego meets one partner again and again, and remembers it or not.

Folder:   ``encounters`` of a matrix, one sealed file for each ego and partner; all of them together
          are ``encounters.json``, see `cadenza.evaluation.encounters`.
Episodes: encounter e of series i of seed s starts from the number i E + e of the stream of s, with
          the memory kept and with it reset. The partner begins every encounter anew.
Resume:   a finished pair is not played again.
Axes:     N = series, E = encounters, T = times, S = what an ego remembers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.cells import LANES, PLAN_NAME, EvaluationPlan, initial_state_seed
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.executor import Job, JobProgress, default_workers, run_jobs
from cadenza.benchmark.lanes import open_lanes, play_lanes
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, NetworkPolicy, load_policy
from cadenza.benchmark.tasks import TaskSpec, adopt, get_task
from cadenza.benchmark.zoo.matrix import Matrix
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import IntegrityError
from cadenza.core.files import make_folder, remove_temporaries
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
    """Plays a policy that goes into an encounter with what was kept of the last one, row by row.

    Rows that play on after their episode, because others have not ended, are not kept again.
    """

    def __init__(self, policy: NetworkPolicy, rows: int) -> None:
        self._policy = policy
        self._kept = np.zeros((rows, policy.memory.shape[1]), dtype=np.float32)

    def keep(self, row: int) -> None:
        """Keep what the policy remembers at the end of an encounter."""
        self._kept[row] = self._policy.memory[row]

    def reset(self, *, seed: int) -> None:
        """Go into the next encounter in all rows."""
        del seed
        self._policy.memory = self._kept.copy()

    def reset_row(self, row: int, *, seed: int) -> None:
        """Do nothing: `reset` comes before every encounter."""
        del row, seed

    def act(self, obs: Observation) -> NDArray[Any]:
        """See `NetworkPolicy`."""
        return self._policy.act(obs)

    def act_rows(self, states: NDArray[Any]) -> NDArray[Any]:
        """See `NetworkPolicy`."""
        return self._policy.act_rows(states)


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


class EncounterRunner:
    """Plays all encounters of one ego with one partner, and stores them; made of plain values."""

    def __init__(
        self,
        *,
        folder: Path,
        plan: bytes,
        artifacts_root: Path,
        encounters: int,
        task: TaskSpec,
        modules: tuple[str, ...],
    ) -> None:
        adopt(task, modules)
        self._folder, self._root, self._count = folder, artifacts_root, encounters
        self._plan = EvaluationPlan.from_bytes(plan)
        self._success, self._times = task.has_success, times_of(self._plan)
        self._series = [(seed, i) for seed in self._plan.seeds for i in range(SERIES)]

    def __call__(self, key: str, /) -> None:
        """Play the pair ``key``, ego and partner by name."""
        ego, _, partner = key.partition("/")
        self._remembers = False
        with single_torch_thread():
            reset, progress = self._play(ego, partner, keep=False)
            kept = self._play(ego, partner, keep=True)[0].tolist() if self._remembers else None
        found = {
            "ego": ego,
            "partner": partner,
            "seeds": [seed for seed, _ in self._series],
            "reset": reset.tolist(),
            "kept": kept,
            "progress": progress.tolist(),
        }
        write_sealed_json(self._folder / _file_of(key), found, kind=_KIND)

    def _play(
        self, ego: str, partner: str, *, keep: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return scores (N, E) and progress in the first encounters (N, T)."""
        rows, played = max(2, len(self._series)), self._plan.policy(ego)

        def make_policy(seat: EgoSeat) -> EgoPolicy:
            policy = load_policy(
                played.source,
                seat=seat,
                artifacts_root=self._root,
                weights_sha256=played.weights_sha256,
            )
            if not isinstance(policy, NetworkPolicy) or not policy.memory.shape[1]:
                return policy
            self._remembers = True
            return CarriedMemory(policy, rows) if keep else policy

        scores = np.zeros((len(self._series), self._count))
        progress = np.zeros((len(scores), len(self._times)))
        for row, e, episode, rewards in self._episodes(ego, partner, rows, make_policy):
            scores[row, e] = episode.success if self._success else episode.episode_return or 0.0
            if e == 0:
                progress[row] = self._progress(episode, rewards)
        return scores, progress

    def _episodes(
        self, ego: str, partner: str, rows: int, make_policy: Callable[[EgoSeat], EgoPolicy]
    ) -> Iterator[tuple[int, int, EpisodeResult, list[float]]]:
        """Yield series, encounter, record and rewards of every episode."""
        plan = self._plan
        entry, condition = plan.partner(partner), plan.conditions[0]
        parts: dict[str, Any] = {
            "env": condition.env_of(plan.env),
            "partner": condition.partner_of(entry.partner),
            "weights_sha256": entry.weights_sha256,
            "safety": condition.safety,
            "make_policy": make_policy,
        }
        table = [
            [
                EpisodeTag(
                    seed=seed,
                    episode_idx=i * self._count + e,
                    initial_state_seed=initial_state_seed(seed, i * self._count + e),
                    policy=ego,
                    condition=condition.name,
                    partner=partner,
                )
                for e in range(self._count)
            ]
            for seed, i in self._series
        ]
        if plan.engine is not None and plan.engine.conditions[condition.name] == LANES:
            with open_lanes(lanes=rows, **parts) as world:
                for e in range(self._count):
                    traced = _Traced(world.env)
                    tags = [series[e] for series in table]
                    for row, episode in play_lanes(replace(world, env=traced), tags):
                        if isinstance(world.policy, CarriedMemory):
                            world.policy.keep(row)
                        yield row, e, episode, [float(step[row]) for step in traced.rewards]
            return
        for row, series in enumerate(table):
            with open_world(root_seed=series[0].seed, **parts) as world:
                for e, tag in enumerate(series):
                    traced = _Traced(world.env)
                    episode = run_episode(replace(world, env=traced), tag)
                    if isinstance(world.policy, CarriedMemory):
                        world.policy.keep(0)
                    yield row, e, episode, [float(step[0]) for step in traced.rewards]

    def _progress(self, episode: EpisodeResult, rewards: Sequence[float]) -> list[float]:
        """Return the score so far at each time, (T,)."""
        steps = episode.n_steps or 0
        if self._success:
            return [float(episode.success and steps <= time) for time in self._times]
        so_far = np.cumsum(rewards[:steps])
        return [float(so_far[min(time, steps) - 1]) for time in self._times]


def times_of(plan: EvaluationPlan) -> tuple[int, ...]:
    """Return the control steps at which progress is noted."""
    task = get_task(plan.env.task, plan.task_version)
    horizon = plan.env.episode_length or task.episode_length
    return tuple(sorted({max(1, round(k * horizon / TIMES)) for k in range(1, TIMES + 1)}))


def play_encounters(
    matrix: Matrix,
    *,
    out: Path,
    encounters: int,
    workers: int | None = None,
    progress: JobProgress | None = None,
) -> Encounters:
    """Play the encounters of the judged egos of a matrix with all of its partners.

    Args:
        matrix: The matrix.
        out: Its folder.
        encounters: E, at least 2.
        workers: Processes; by default one per core.
        progress: Called with (pairs done, pairs in all, the last one).
    """
    folder = out / ENCOUNTERS_FOLDER
    make_folder(folder)
    plan = EvaluationPlan.from_bytes((out / PLAN_NAME).read_bytes())
    task = get_task(plan.env.task, plan.task_version)
    policies = [policy for ego in matrix.judged for policy in matrix.policies[ego]]
    keys = [f"{policy}/{entry.name}" for policy in policies for entry in plan.partners]
    missing = [key for key in keys if _stored(folder, key, encounters) is None]
    factory = partial(
        EncounterRunner,
        folder=folder,
        plan=plan.to_bytes(),
        artifacts_root=(out / matrix.artifacts_root).resolve(),
        encounters=encounters,
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
        series=tuple(_told(matrix, plan, _read(folder, key)) for key in keys),
    )
    write_sealed_json(out / ENCOUNTERS_JSON, found.model_dump(mode="json"), kind=_KIND)
    return found


def read_encounters(folder: Path) -> Encounters | None:
    """Return the encounters in the folder of a matrix; None without any.

    Raises:
        IntegrityError: They are not what was sealed.
    """
    path = folder / ENCOUNTERS_JSON
    if not path.is_file():
        return None
    return Encounters.model_validate(read_sealed_json(path, kind=_KIND))


def _stored(folder: Path, key: str, encounters: int) -> EncounterSeries | None:
    """Return what was stored of a pair; None if nothing, or of another number of encounters."""
    try:
        found = _read(folder, key)
    except IntegrityError:
        return None
    return found if len(found.reset[0]) == encounters else None


def _read(folder: Path, key: str) -> EncounterSeries:
    return EncounterSeries.model_validate(read_sealed_json(folder / _file_of(key), kind=_KIND))


def _told(matrix: Matrix, plan: EvaluationPlan, series: EncounterSeries) -> EncounterSeries:
    """Return the series of a policy as its ego's, whose clusters may be its training seeds."""
    policy = plan.policy(series.ego)
    changes: dict[str, Any] = {"ego": policy.method or policy.name}
    if len(matrix.policies[changes["ego"]]) > 1:
        changes["seeds"] = (policy.training_seed,) * len(series.seeds)
    return series.model_copy(update=changes)


def _file_of(key: str) -> str:
    return f"{key.replace('/', '@')}.json"  # which no name has in it
