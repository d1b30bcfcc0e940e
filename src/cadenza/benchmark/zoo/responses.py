"""Best responses: for every partner an ego that was trained beside it alone, with a stated budget.

Folder:   ``best-responses`` of a zoo, or one of its own for partners by name
              request.json         what was asked for; another request is refused
              jobs/JOB.json        sealed: learning curve, scores and policy of a finished training
              candidates/          the policy of each training, from its best evaluation
              policies/            of each partner the best of its trainings, ``br-PARTNER``
              best-responses.json  what reports measure against: `cadenza.evaluation.best_responses`
              work/                newest states of unfinished trainings
Choice:   the evaluation that a policy is taken from, and the training that counts, are chosen on
          validation episodes; the score that is printed is of others, so it is not picked for luck.
Random:   an ego that draws uniformly plays the episodes of the score, too.
Promise:  a training is a pure function of the request: killed at any time and resumed, with any
          number of workers, it ends with the same bytes.
Axes:     K = responses trained together, N = environments, M = episodes, R = evaluations.
"""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cadenza.benchmark.builders import code_digest, require_player
from cadenza.benchmark.executor import Job, default_workers, run_jobs
from cadenza.benchmark.output_folder import OutputMode, open_output_folder
from cadenza.benchmark.tasks import OptionValue, TaskSpec, adopt
from cadenza.benchmark.zoo.build import store_request, watched
from cadenza.benchmark.zoo.config import ZooConfig, default_ppo
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.jobs import JOBS_FOLDER, WORK_FOLDER, progress_path
from cadenza.benchmark.zoo.matrix import ZooEntry
from cadenza.benchmark.zoo.pairs import PairEnv, PairEpisodes, PairPolicy, open_pairs, play_pairs
from cadenza.benchmark.zoo.stacked import plain_policy
from cadenza.core.arrays import Float32Array
from cadenza.core.checkpoints import (
    CheckpointMetadata,
    load_checkpoint,
    save_checkpoint,
)
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import CheckpointError, ConfigurationError, IntegrityError
from cadenza.core.files import atomic_write_json, make_folder, remove_temporaries
from cadenza.core.progress import ProgressReport
from cadenza.core.seeding import derive_substream
from cadenza.core.signals import ends_on_signals
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.evaluation.best_responses import BestResponse, BestResponses
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.learn.nn.portable import (
    SUFFIX,
    PortableNetwork,
    load_policy_file,
    save_policy_file,
)
from cadenza.learn.settings import Count, FrozenModel
from cadenza.learn.stacked.ppo import StackedPPO
from cadenza.learn.stacked.rollout import Cut
from cadenza.partners.pool import PartnerPool
from cadenza.partners.registry import load_partner, outside_modules
from cadenza.partners.zoo_manifest import Skill, ZooManifest, ZooMember

#: Folder of a zoo's best responses, the file that reports read, and the policies.
RESPONSES_FOLDER: Final = "best-responses"
RESPONSES_JSON: Final = "best-responses.json"
POLICIES_FOLDER: Final = "policies"
_CANDIDATES: Final = "candidates"
_RESULT_KIND: Final = "best response"
_REQUEST_KIND: Final = "best-response request"


class ResponseConfig(FrozenModel):
    """What is spent on a best response.

    Attributes:
        steps: Environment steps of one training.
        seeds: Trainings for each partner, of which the best counts.
        num_envs: Copies of the environment stepped as one.
        seed: Root seed.
        snapshots: Evaluations while training, after the first.
        episodes: Episodes of every measurement.
        metric: What a response is chosen and measured by; None takes success where the task has it.
        ppo: The learner.
    """

    steps: Count = Field(default=300_000, ge=1)
    seeds: Count = Field(default=1, ge=1)
    num_envs: Count = Field(default=32, ge=2)
    seed: Count = Field(default=0, ge=0)
    snapshots: Count = Field(default=10, ge=2)
    episodes: Count = Field(default=100, ge=2)
    metric: Literal["success", "return"] | None = None
    ppo: MAPPOConfig = Field(default_factory=default_ppo)

    def played(self, manifest: ZooManifest) -> ZooConfig:
        """Return how the zoo's task is played and learned."""
        return ZooConfig(
            method="scripted",
            task=manifest.task,
            episode_length=manifest.episode_length,
            options=manifest.options,
            **self.model_dump(include={"steps", "num_envs", "seed", "snapshots", "episodes"}),
            ppo=self.ppo,
        )


class TrainedResponse(FrozenModel):
    """One finished training.

    Attributes:
        partner: Beside whom.
        steps: Environment steps at each evaluation, (R,).
        curve: Mean score of the validation episodes there, (R,).
        best: Which of them the policy is taken from.
        score: Of the policy, in other episodes.
        random: Of a random ego, in the same ones.
        policy: Content id of the policy file.
    """

    partner: str
    steps: tuple[int, ...]
    curve: tuple[float, ...]
    best: int
    score: Skill
    random: Skill
    policy: str


def partners_by_name(
    task: TaskSpec, names: Sequence[str], options: Mapping[str, OptionValue]
) -> ZooManifest:
    """Return a zoo of registered partners without settings, called by their classes.

    Raises:
        ConfigurationError: A partner plays other tasks, or the task has no such option.
        UnknownNameError: A partner is not registered.
    """
    task.complete_options(options)
    for name in names:
        require_player(task, name)
    config = ZooConfig(method="scripted", task=task.task_id, options=dict(options))
    return ZooManifest(
        task=task.task_id,
        task_version=task.version,
        task_sha256=config.task_sha256(),
        episode_length=config.horizon,
        options=dict(options),
        code_sha256="",
        package_version="",
        requests=[],
        members=tuple(ZooMember(name=n, family=n, class_name=n) for n in names),
    )


@ends_on_signals
def train_responses(
    manifest: ZooManifest,
    config: ResponseConfig,
    *,
    zoo: Path,
    out: Path,
    workers: int | None = None,
    mode: OutputMode = "new",
    progress: ProgressReport | None = None,
) -> dict[str, TrainedResponse]:
    """Train a best response to every member of a zoo, and write what they score.

    Args:
        manifest: The zoo's.
        config: The budget.
        zoo: Folder of the zoo.
        out: Folder of the responses.
        workers: Processes; by default one per core.
        mode: ``"resume"`` continues the same request, ``"overwrite"`` starts over.
        progress: Called with (rollouts done, rollouts in all, trainings finished).

    Returns:
        The training that counts, by partner.

    Raises:
        ConfigurationError: A setting or the folder does not fit.
        CadenzaError: A training failed; finished ones are kept.
        StorageError: The file system refused; finished trainings are kept.
    """
    played = config.played(manifest)
    if config.metric == "success" and not played.spec.has_success:
        raise ConfigurationError(
            f"metric: expected 'return', as task {manifest.task!r} has no success, got 'success'."
        )
    keys = {
        f"{m.name}-r{k}": ZooEntry(folder=zoo.resolve(), member=m)
        for m in manifest.members
        for k in range(config.seeds)
    }
    classes = sorted({member.class_name for member in manifest.members})
    with open_output_folder(out, mode=mode):
        folder = out.resolve()
        asked: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "task": manifest.task_sha256,
            "partners": [member.model_dump(mode="json") for member in manifest.members],
        }
        code = code_digest(played.spec, classes)
        origin = store_request(folder, asked, code, kind=_REQUEST_KIND, seed=config.seed)
        for name in (_CANDIDATES, POLICIES_FOLDER):
            make_folder(folder / name)
        missing = [key for key in keys if finished_response(folder, key) is None]
        count = default_workers() if workers is None else workers
        plan = ResponseFactory(
            folder=folder,
            config=config,
            played=played,
            entries=keys,
            task=played.spec,
            modules=outside_modules(classes),
            origin=origin,
        )
        jobs = [
            Job(key=key, label=f"best response {key}", batch=str(k % count))
            for k, key in enumerate(missing)
        ]
        with watched(folder, list(keys), missing, played.iterations, progress):
            run_jobs(jobs, plan, workers=count)
        shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)
        for name in (JOBS_FOLDER, _CANDIDATES, POLICIES_FOLDER):
            remove_temporaries(folder / name)
        return _conclude(folder, manifest, config, played)


def _conclude(
    folder: Path, manifest: ZooManifest, config: ResponseConfig, played: ZooConfig
) -> dict[str, TrainedResponse]:
    """Choose among the trainings of each partner, and write policies and scores."""
    chosen: dict[str, TrainedResponse] = {}
    best: dict[str, BestResponse] = {}
    for member in manifest.members:
        keys = [f"{member.name}-r{k}" for k in range(config.seeds)]
        trained = {key: cast("TrainedResponse", finished_response(folder, key)) for key in keys}
        key = max(keys, key=lambda key: trained[key].curve[trained[key].best])
        found = chosen[member.name] = trained[key]
        network = load_policy_file(_candidate(folder, key))
        save_policy_file(network, folder / POLICIES_FOLDER / f"br-{member.name}{SUFFIX}")
        if found.score.value > found.random.value:
            seeds = f"best of {config.seeds} trainings" if config.seeds > 1 else "one training"
            best[member.name] = BestResponse(
                value=found.score.value,
                low=found.score.low,
                high=found.score.high,
                random=found.random.value,
                trained=f"PPO beside it alone, {played.steps:,} steps, {seeds}, "
                f"root seed {config.seed}",
                sha256=found.policy,
                steps=found.steps,
                curve=found.curve,
            )
    task, metric = played.spec.slug, _metric(config, played)
    path = folder / RESPONSES_JSON
    if best:
        facts = BestResponses(task=task, metric=metric, partners=best)
        atomic_write_json(path, facts.model_dump(mode="json"))
    else:
        path.unlink(missing_ok=True)
    return chosen


def _metric(config: ResponseConfig, played: ZooConfig) -> Literal["success", "return"]:
    return config.metric or ("success" if played.spec.has_success else "return")


def _candidate(folder: Path, key: str) -> Path:
    return folder / _CANDIDATES / f"{key}{SUFFIX}"


def finished_response(folder: Path, key: str) -> TrainedResponse | None:
    """Return what a training made; None if it is not finished or its policy is another."""
    try:
        facts = read_sealed_json(folder / JOBS_FOLDER / f"{key}.json", kind=_RESULT_KIND)
        found = TrainedResponse.model_validate(facts)
        same = load_policy_file(_candidate(folder, key)).content_id == found.policy
    except (IntegrityError, CheckpointError):
        return None
    return found if same else None


class SeatedPartners:
    """Members in the partner's seat, each in as many environments of its own.

    The draws of one depend on its own rows alone.
    """

    def __init__(self, env: PairEnv, entries: Sequence[ZooEntry], each: int) -> None:
        self._env, self._each, self._count = env, each, len(entries)
        members = [load_partner(entry.spec(env.uids[1])) for entry in entries]
        self._pool = PartnerPool(members, rows=self._count * each)
        if env.choices is None:
            self._pool.bind(env.env.single_action_space[env.uids[1]])
        self._rngs: list[np.random.Generator] = []

    def begin(self, seeds: Sequence[int]) -> None:
        """Begin episodes in all environments, by one seed for each member."""
        streams = [derive_substream("zoo.response.partner", root_seed=seed) for seed in seeds]
        self._rngs = [stream.default_rng() for stream in streams]
        self._pool.reset(seed=seeds[0])
        self.begin_rows(np.arange(self._count * self._each, dtype=np.int64))

    def begin_rows(self, rows: NDArray[np.int64]) -> None:
        """Begin episodes in some, in ascending order."""
        members = rows // self._each
        own: list[int] = np.bincount(members, minlength=self._count).tolist()
        pairs = zip(self._rngs, own, strict=True)
        seeds = [int(rng.integers(2**31 - 1)) for rng, n in pairs for _ in range(n)]
        self._pool.begin(rows.tolist(), members.tolist(), seeds)

    def act(self, states: Float32Array) -> Float32Array:
        """Return their actions, (N, A), for both robots' states, (2, N, O)."""
        return self._pool.act(self._env.observation(states))


def random_ego(env: PairEnv, seed: int) -> PairPolicy:
    """Return an ego that draws uniformly, within its bounds or among its choices."""
    rng = derive_substream("zoo.response.random", root_seed=seed).default_rng()

    def act(states: Float32Array) -> Float32Array:
        rows: int = states.shape[1]
        if env.choices is not None:
            return env.scaled(0, rng.integers(env.choices, size=rows))
        return env.scaled(0, rng.uniform(-1.0, 1.0, size=(rows, env.action_dims[0])))

    return act


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFactory:
    """Builds the runner of one process; travels to workers as plain values."""

    folder: Path
    config: ResponseConfig
    played: ZooConfig
    entries: Mapping[str, ZooEntry]
    task: TaskSpec
    modules: tuple[str, ...]
    origin: tuple[str, str]

    def __call__(self) -> "ResponseRunner":
        """Return the runner."""
        adopt(self.task, self.modules)
        return ResponseRunner(self)


class ResponseRunner:
    """Trains best responses, several at once, and stores each."""

    def __init__(self, plan: ResponseFactory) -> None:
        self._plan, self._folder = plan, plan.folder

    def __call__(self, key: str, /) -> None:
        """Train one, from its newest state if it has one."""
        for _ in self.batch([key]):
            pass

    def batch(self, keys: Sequence[str], /) -> Iterator[tuple[str, None]]:
        """Train several; those that an interruption left at one evaluation go on together."""
        states = {key: self._load(key) for key in keys}
        reached: dict[int, list[str]] = {}
        for key, state in states.items():
            reached.setdefault(0 if state is None else len(state["curve"]), []).append(key)
        for group in reached.values():
            with single_torch_thread():
                self._train(group, [states[key] for key in group])
            yield from ((key, None) for key in group)

    def _train(self, keys: Sequence[str], states: Sequence[dict[str, Any] | None]) -> None:
        plan, played = self._plan, self._plan.played
        total, marks = played.iterations, played.snapshots
        due = sorted({round(k * total / marks) for k in range(marks + 1)})
        with ExitStack() as open_now:
            group = Responses(played, keys, [plan.entries[key] for key in keys], open_now)
            stage = _Stage(plan, keys, open_now)
            courses = [_Course(plan, *pair) for pair in zip(keys, states, strict=True)]
            begin = courses[0].iteration
            if states[0] is not None:
                group.load_states([state["learner"] for state in states if state is not None])
            logs = [
                open_now.enter_context(_progress_file(self._folder, key, begin)) for key in keys
            ]
            for iteration in range(begin, total + 1):
                if iteration in due[len(courses[0].curve) :]:
                    policies = group.policies()
                    found = stage.play(list(map(stage.acting, policies)), "validation")
                    for course, policy, episodes in zip(courses, policies, found, strict=True):
                        course.note(iteration, policy, episodes)
                    for course, state in zip(courses, group.states(), strict=True):
                        self._save(course, state)
                if iteration < total:
                    group.iterate(iteration)
                    for log in logs:
                        log.write(b".")
                        log.flush()
            share = played.num_envs * played.ppo.rollout_length
            steps = [mark * share for mark in due]
            best = [stage.acting(course.policy) for course in courses]
            scores = stage.play(best, "score")
            chance = [random_ego(stage.env, played.seed) for _ in courses]
            chances = stage.play(chance, "score")
            for course, score, drawn in zip(courses, scores, chances, strict=True):
                course.publish(self._folder, steps, score, drawn)

    def _state_path(self, key: str) -> Path:
        return self._folder / WORK_FOLDER / f"{key}.pt"

    def _load(self, key: str) -> dict[str, Any] | None:
        if not self._state_path(key).exists():
            return None
        try:
            uri = f"local://{WORK_FOLDER}/{key}.pt"
            return load_checkpoint(uri=uri, artifacts_root=self._folder)[0]
        except CheckpointError:
            return None  # it begins anew, with the same result

    def _save(self, course: "_Course", learner: Mapping[str, Any]) -> None:
        git_sha, project = self._plan.origin
        save_checkpoint(
            state_dict={**course.state_dict(), "learner": learner},
            uri=f"local://{WORK_FOLDER}/{course.key}.pt",
            metadata=CheckpointMetadata(
                run_id=course.key,
                seed=self._plan.config.seed,
                step=course.iteration,
                git_sha=git_sha,
                pyproject_hash=project,
            ),
            artifacts_root=self._folder,
        )


def _progress_file(folder: Path, key: str, begin: int) -> Any:
    """Return the open file with a byte per finished rollout of a training."""
    path = progress_path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab")
    file.truncate(begin)
    return file


class _Stage:
    """Where K responses play the episodes of their evaluations, in one batch."""

    def __init__(self, plan: ResponseFactory, keys: Sequence[str], open_now: ExitStack) -> None:
        config = self._config = plan.played
        env = open_pairs(config, len(keys) * config.episodes)
        self.env: PairEnv = open_now.enter_context(closing(env))
        self._partners = [SeatedPartners(env, [plan.entries[key]], config.episodes) for key in keys]

    def acting(self, policy: PortableNetwork) -> PairPolicy:
        """Return what a policy does for states of both robots."""
        width = self.env.observation_dims[0]
        return lambda states: policy.act(states[0][:, :width])

    def play(self, egos: Sequence[PairPolicy], purpose: str) -> list[PairEpisodes]:
        """Play the episodes of a purpose, the same for every ego, each beside its partner."""
        name = f"zoo.response.{purpose}"
        seed = derive_substream(name, root_seed=self._config.seed).integer_seed()
        for partner in self._partners:
            partner.begin([seed])
        return play_pairs(
            self.env,
            [(ego, partner.act) for ego, partner in zip(egos, self._partners, strict=True)],
            horizon=self._config.horizon,
            events=events_of(self._config.task),
            seed=seed,
        )


class _Course:
    """The evaluations of one training, and the best policy so far."""

    def __init__(self, plan: ResponseFactory, key: str, state: Mapping[str, Any] | None) -> None:
        self.key = key
        self.iteration = 0
        self.curve: list[float] = []
        self._metric = _metric(plan.config, plan.played)
        self._partner = plan.entries[key].member.name
        self._best, self._standing, self._kept = 0, (-math.inf, -math.inf), dict[str, Any]()
        if state is not None:
            self.iteration, self.curve = int(state["iteration"]), list(state["curve"])
            self._best, self._kept = int(state["best"]), state["policy"]
            self._standing = (float(state["standing"][0]), float(state["standing"][1]))

    @property
    def policy(self) -> PortableNetwork:
        """The best so far."""
        return PortableNetwork.from_state_dict(self._kept)

    def state_dict(self) -> dict[str, Any]:
        """Return what later evaluations depend on."""
        return {
            "iteration": self.iteration,
            "curve": self.curve,
            "best": self._best,
            "standing": list(self._standing),
            "policy": self._kept,
        }

    def note(self, iteration: int, policy: PortableNetwork, played: PairEpisodes) -> None:
        """Take in an evaluation; among equal scores the higher return is the better one."""
        scores = played.scores if self._metric == "success" else played.returns
        self.iteration = iteration
        self.curve.append(float(scores.mean()))
        standing = (self.curve[-1], float(played.returns.mean()))
        if standing > self._standing:
            self._best, self._standing = len(self.curve) - 1, standing
            self._kept = policy.state_dict()

    def publish(
        self, folder: Path, steps: Sequence[int], score: PairEpisodes, chance: PairEpisodes
    ) -> None:
        """Store the best policy, and then say that the training is finished."""
        network = self.policy
        save_policy_file(network, _candidate(folder, self.key))
        result = TrainedResponse(
            partner=self._partner,
            steps=tuple(steps),
            curve=tuple(self.curve),
            best=self._best,
            score=self._skill(score),
            random=self._skill(chance),
            policy=network.content_id,
        )
        path = folder / JOBS_FOLDER / f"{self.key}.json"
        write_sealed_json(path, result.model_dump(mode="json"), kind=_RESULT_KIND)

    def _skill(self, played: PairEpisodes) -> Skill:
        return (played if self._metric == "success" else replace(played, successes=None)).skill()


class Responses:
    """K egos that train as one network, each beside its own partner in N environments of its own.

    A rollout begins with new episodes. The critic sees both robots' states, which the policy never
    does.
    """

    def __init__(
        self,
        config: ZooConfig,
        keys: Sequence[str],
        entries: Sequence[ZooEntry],
        open_now: ExitStack,
    ) -> None:
        self._config, self._keys = config, keys
        size = len(keys) * config.num_envs
        env = open_pairs(config, size, stride=config.num_envs)
        self._env = open_now.enter_context(closing(env))
        self._width = env.observation_dim  # padded to the wider robot's
        self._learner = StackedPPO(
            config.ppo,
            observation_dim=self._width,
            critic_dim=2 * env.observation_dim,
            choices=env.choices,
            action_dim=None if env.choices is not None else env.action_dims[0],
            seeds=[self._seed(key, "learner") for key in keys],
            names=keys,
        )
        self._rollout = self._learner.new_rollout(
            steps=config.ppo.rollout_length, rows=config.num_envs
        )
        self._partners = SeatedPartners(env, entries, config.num_envs)

    def _seed(self, key: str, purpose: str) -> int:
        name = f"zoo.response.{key}.{purpose}"
        return derive_substream(name, root_seed=self._config.seed).integer_seed()

    def iterate(self, iteration: int) -> None:
        """Play a rollout with every partner, and learn from it."""
        config, env, learner, rollout = self._config, self._env, self._learner, self._rollout
        shape = len(self._keys), config.num_envs
        seeds = [self._seed(key, f"rollout.{iteration}") for key in self._keys]
        states = env.reset([seed + row for seed in seeds for row in range(shape[1])])
        self._partners.begin(seeds)
        for moment in range(config.ppo.rollout_length):
            seen = learner.scale(states[0].reshape(*shape, -1), learn=True)
            rollout.observations[:, moment] = seen
            rollout.critic_observations[:, moment] = _both(states).reshape(*shape, -1)
            decided = rollout.decisions[:, moment] = learner.act(seen)
            unit = decided.reshape(shape[0] * shape[1], *decided.shape[2:])
            step = env.step([env.scaled(0, unit), self._partners.act(states)])
            rollout.rewards[:, moment] = step.rewards.reshape(shape)
            rollout.boundaries[:, moment] = step.boundaries.reshape(shape)
            cut = np.zeros(shape, dtype=np.bool_)
            cut.reshape(-1)[step.cut] = True
            last = _both(step.following).reshape(*shape, -1)
            for k in np.flatnonzero(cut.any(axis=1)).tolist():
                rows = np.flatnonzero(cut[k])
                rollout.cuts.append(Cut(k, moment, rows, last[k, rows]))
            self._partners.begin_rows(np.flatnonzero(step.boundaries))
            states = step.states
        rollout.critic_observations[:, -1] = _both(states).reshape(*shape, -1)
        steps = config.ppo.rollout_length * config.num_envs
        learner.update(rollout, done=iteration * steps, total=config.iterations * steps)

    def policies(self) -> list[PortableNetwork]:
        """Return what the egos would play now."""
        task, facts = {"id": self._config.task}, {"algorithm": "best response"}
        return [
            replace(self._policy(k), task=task, seat="ego", facts=facts)
            for k in range(len(self._keys))
        ]

    def _policy(self, member: int) -> PortableNetwork:
        moments = self._learner.observation_moments(member)
        return plain_policy(
            self._learner.policy(member),
            self._env,
            0,
            np.zeros(self._width - self._env.observation_dims[0]),
            activation=self._config.ppo.activation,
            moments=None if moments is None else np.stack(moments),
        )

    def states(self) -> list[dict[str, Any]]:
        """Return everything later iterations depend on, of each."""
        return [self._learner.member_state(k) for k in range(len(self._keys))]

    def load_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue where `states` were taken."""
        for k, state in enumerate(states):
            self._learner.load_member_state(k, state)


def _both(states: Float32Array) -> Float32Array:
    """Return both robots' states side by side, (N, 2 O), for states (2, N, O)."""
    return np.concatenate((states[0], states[1]), axis=1)
