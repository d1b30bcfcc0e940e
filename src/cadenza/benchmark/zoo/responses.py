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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import Field

from cadenza.benchmark.builders import code_digest, require_player
from cadenza.benchmark.output_folder import OutputMode, open_output_folder, require_outside
from cadenza.benchmark.ray_executor import RayCluster
from cadenza.benchmark.tasks import OptionValue, TaskSpec
from cadenza.benchmark.zoo.build import do_jobs, store_request
from cadenza.benchmark.zoo.config import ZooConfig, default_ppo
from cadenza.benchmark.zoo.fcp import SelfPlay
from cadenza.benchmark.zoo.jobs import (
    JOBS_FOLDER,
    Course,
    State,
    TrainingRunner,
    acting,
)
from cadenza.benchmark.zoo.matrix import ZooEntry, settings_of
from cadenza.benchmark.zoo.pairs import PairEnv, PairEpisodes, PairPolicy, open_pairs
from cadenza.benchmark.zoo.stacked import SeatedPartners
from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, ConfigurationError, IntegrityError
from cadenza.core.files import make_folder, remove_temporaries
from cadenza.core.progress import ProgressReport
from cadenza.core.seeding import derive_substream
from cadenza.core.signals import ends_on_signals
from cadenza.core.strict_json import read_sealed_json
from cadenza.evaluation.best_responses import (
    BestResponse,
    BestResponses,
    store_best_responses,
)
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.learn.nn.portable import (
    SUFFIX,
    PortableNetwork,
    load_policy_file,
    save_policy_file,
)
from cadenza.learn.settings import Count, FrozenModel
from cadenza.partners.interface import FrozenPartner
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
        own = self.model_dump(include={"steps", "num_envs", "seed", "snapshots", "episodes"})
        return settings_of(manifest, **own, ppo=self.ppo)


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
    return config.manifest(ZooMember(name=n, family=n, class_name=n) for n in names)


@ends_on_signals
def train_responses(
    manifest: ZooManifest,
    config: ResponseConfig,
    *,
    zoo: Path,
    out: Path,
    workers: int | None = None,
    cluster: RayCluster | None = None,
    mode: OutputMode = "new",
    progress: ProgressReport | None = None,
) -> dict[str, TrainedResponse]:
    """Train a best response to every member of a zoo, and write what they score.

    Args:
        manifest: The zoo's.
        config: The budget.
        zoo: Folder of the zoo.
        out: Folder of the responses.
        workers: Processes; by default one per core, or as many as the cluster has room for.
        cluster: Ray cluster whose nodes see both folders; None for this machine.
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
    if mode == "overwrite":
        require_outside(out, [zoo])
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
        factory = partial(
            ResponseRunner,
            budget=config,
            folder=folder,
            config=played,
            entries=keys,
            task=played.spec,
            modules=outside_modules(classes),
            origin=origin,
        )
        do_jobs(
            folder,
            {key: finished_response(folder, key) is not None for key in keys},
            factory,
            label="best response",
            rollouts=played.iterations,
            workers=workers,
            cluster=cluster,
            progress=progress,
        )
        for name in (_CANDIDATES, POLICIES_FOLDER):
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
                random_high=found.random.high,
                trained=f"PPO beside it alone, {played.steps:,} steps, {seeds}, "
                f"root seed {config.seed}",
                sha256=found.policy,
                steps=found.steps,
                curve=found.curve,
            )
    task, metric = played.spec.slug, _metric(config, played)
    path = folder / RESPONSES_JSON
    if best:
        store_best_responses(path, BestResponses(task=task, metric=metric, partners=best))
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


def random_ego(env: PairEnv, seed: int) -> PairPolicy:
    """Return an ego that draws uniformly, within its bounds or among its choices."""
    rng = derive_substream("zoo.response.random", root_seed=seed).default_rng()

    def act(states: Float32Array) -> Float32Array:
        rows: int = states.shape[1]
        if env.choices is not None:
            return env.scaled(0, rng.integers(env.choices, size=rows))
        return env.scaled(0, rng.uniform(-1.0, 1.0, size=(rows, env.action_dims[0])))

    return act


class ResponseRunner(TrainingRunner):
    """Trains best responses and stores each."""

    def __init__(
        self, *, budget: ResponseConfig, entries: Mapping[str, ZooEntry], **training: Any
    ) -> None:
        super().__init__(**training)
        self.budget: ResponseConfig = budget
        self.entries: Mapping[str, ZooEntry] = entries

    def course(self, keys: Sequence[str], states: Mapping[str, State | None]) -> "_Course":
        """Return the training of ``keys``, each beside its partner."""
        config = self.config
        env = open_pairs(config, len(keys) * config.num_envs, stride=config.num_envs)
        partners = SeatedPartners(env, self.partners(keys, env), config.num_envs)
        return _Course(self, SelfPlay(config, env, keys, partners), states)

    def partners(self, keys: Sequence[str], env: PairEnv) -> list[FrozenPartner]:
        """Return new partners of ``keys``."""
        return [load_partner(self.entries[key].spec(env.uids[1])) for key in keys]


class _Course(Course):
    """The evaluations of trainings, and the best policy of each so far."""

    _runner: ResponseRunner
    _population: SelfPlay

    def __init__(
        self, runner: ResponseRunner, population: SelfPlay, states: Mapping[str, State | None]
    ) -> None:
        self._metric = _metric(runner.budget, runner.config)
        known: dict[str, Any] = {
            "curve": [],
            "best": 0,
            "standing": [-math.inf, -math.inf],
            "policy": {},
        }
        super().__init__(runner, population, states, known)
        partners = runner.partners(self._keys, population.env)
        self._partners = [
            SeatedPartners(population.env, [one], self._config.episodes) for one in partners
        ]

    def _play(self, egos: Sequence[PairPolicy], purpose: str) -> list[PairEpisodes]:
        """Play the episodes of a purpose, the same for every ego, each beside its partner."""
        name = f"zoo.response.{purpose}"
        seed = derive_substream(name, root_seed=self._config.seed).integer_seed()
        for partner in self._partners:
            partner.begin([seed])
        acting = [partner.act for partner in self._partners]
        return self._stage.play(list(zip(egos, acting, strict=True)), seed)

    def _evaluate(self) -> None:
        """Take in how everybody does; among equal scores the higher return is the better one."""
        population = self._population
        policies = [population.players.policy(k, 0) for k in range(len(self._keys))]
        egos = [acting(policy, population.env, 0) for policy in policies]
        played = self._play(egos, "validation")
        for found, policy, episodes in zip(self._known, policies, played, strict=True):
            scores = episodes.scores if self._metric == "success" else episodes.returns
            standing = [float(scores.mean()), float(episodes.returns.mean())]
            found["curve"] = [*found["curve"], standing[0]]
            if standing > found["standing"]:
                best = {"best": len(found["curve"]) - 1, "policy": policy.state_dict()}
                found |= {"standing": standing, **best}

    def publish(self) -> None:
        """Store the best policies, and then say that the trainings are finished."""
        env, config = self._population.env, self._config
        about = {"task": {"id": config.task}, "facts": {"algorithm": "best response"}}
        best = [PortableNetwork.from_state_dict(found["policy"]) for found in self._known]
        scores = self._play([acting(policy, env, 0) for policy in best], "score")
        chances = self._play([random_ego(env, config.seed) for _ in best], "score")
        played = zip(self._keys, self._known, best, scores, chances, strict=True)
        for key, found, policy, score, chance in played:
            network = replace(policy, **about, seat="ego")
            save_policy_file(network, _candidate(self._runner.folder, key))
            result = TrainedResponse(
                partner=self._runner.entries[key].member.name,
                steps=tuple(self._steps),
                curve=tuple(found["curve"]),
                best=found["best"],
                score=self._skill(score),
                random=self._skill(chance),
                policy=network.content_id,
            )
            self._runner.save_result(key, result.model_dump(mode="json"), _RESULT_KIND)

    def _skill(self, played: PairEpisodes) -> Skill:
        return (played if self._metric == "success" else replace(played, successes=None)).skill()
