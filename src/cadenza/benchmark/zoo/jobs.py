"""The jobs of a population: what trains together, resumed where it was killed, measured, stored.

Folder of a zoo, beside `cadenza.partners.zoo_manifest`:
    request.json      what was asked for; another request is refused
    jobs/JOB.json     sealed: the members that a finished job made, and its learning curves
    work/JOB.pt       newest state of an unfinished job; work/JOB.progress, one byte per rollout
Promise:  a job is a pure function of the request. Its state is stored at every evaluation, and its
          result is one atomic file after its members.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cadenza.benchmark.tasks import TaskSpec, adopt
from cadenza.benchmark.zoo.behavior import PreferringSelfPlay, preferences_of
from cadenza.benchmark.zoo.brdiv import Confederates
from cadenza.benchmark.zoo.config import UNTRAINED, Method, ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.fcp import SelfPlay, halfway
from cadenza.benchmark.zoo.mep import EntropyPopulation
from cadenza.benchmark.zoo.pairs import PairEnv, PairEpisodes, open_pairs, play
from cadenza.benchmark.zoo.training import Population
from cadenza.core.checkpoints import (
    CheckpointMetadata,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
    sidecar_path,
)
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import CheckpointError, IntegrityError
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.learn.nn.portable import policy_path, save_policy_file
from cadenza.partners.zoo_manifest import Tier, ZooManifest, ZooMember
from cadenza.partners.zoo_member import ZOO_MEMBER, MemberPolicies, digest_error

JOBS_FOLDER: Final = "jobs"
WORK_FOLDER: Final = "work"
REQUEST_NAME: Final = "request.json"
_RESULT_KIND: Final = "zoo job"
#: Methods whose policies train on their own, one job each; the others are one job.
_ALONE: Final = frozenset({"fcp", "behavior"})
#: Methods that keep partners of every skill.
_TIERED: Final = frozenset({"fcp", "mep"})
_BUILDERS: Final[dict[Method, Callable[..., Population]]] = {
    "fcp": SelfPlay,
    "mep": EntropyPopulation,
    "brdiv": Confederates,
}


def job_keys(config: ZooConfig) -> list[str]:
    """Return the names of the jobs of a population; a scripted one has none."""
    if config.method in UNTRAINED:
        return []
    if config.method in _ALONE:
        return [f"{config.method}-s{config.seed}-{k}" for k in range(config.population)]
    return [f"{config.method}-s{config.seed}"]


def rollouts_of(config: ZooConfig) -> int:
    """Return the rollouts of one job."""
    return config.iterations * (1 if config.method in _ALONE else config.population)


def _build(config: ZooConfig, env: PairEnv, key: str) -> Population:
    if config.method == "behavior":
        return PreferringSelfPlay(config, env, key, index=int(key.rpartition("-")[2]))
    return _BUILDERS[config.method](config, env, key)


def episode_seed(config: ZooConfig) -> int:
    """Return the root of the episodes in which members are measured, equal for all of a zoo."""
    return derive_substream("zoo.measurement", root_seed=config.seed).integer_seed()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooJobFactory:
    """Builds the runner of one process; travels to workers as plain values."""

    folder: Path
    config: ZooConfig
    task: TaskSpec
    origin: tuple[str, str]
    modules: tuple[str, ...]

    def __call__(self) -> "ZooJobRunner":
        """Return the runner."""
        adopt(self.task, self.modules)
        return ZooJobRunner(self)


class ZooJobRunner:
    """Trains what one job holds, measures it and stores it."""

    def __init__(self, plan: ZooJobFactory) -> None:
        self._folder, self._config, self._origin = plan.folder, plan.config, plan.origin

    def __call__(self, key: str, /) -> None:
        """Do the job ``key``, from its newest state if it has one."""
        config = self._config
        with (
            single_torch_thread(),
            closing(open_pairs(config, config.num_envs)) as env,
            closing(open_pairs(config, config.episodes)) as stage,
        ):
            course = _Course(self, key, _build(config, env, key), stage)
            course.run(progress_path(self._folder, key))
            self._publish(key, course)
        state = self.state_path(key)
        for leftover in (state, sidecar_path(state), progress_path(self._folder, key)):
            leftover.unlink(missing_ok=True)

    def state_path(self, key: str) -> Path:
        """Return where the state of an unfinished job is."""
        return self._folder / WORK_FOLDER / f"{key}.pt"

    def metadata(self, run_id: str, step: int, **extra: Any) -> CheckpointMetadata:
        """Return the origin of a file of the zoo."""
        return CheckpointMetadata(
            run_id=run_id,
            seed=self._config.seed,
            step=step,
            git_sha=self._origin[0],
            pyproject_hash=self._origin[1],
            extra={"task": self._config.task, **extra},
        )

    def load_state(self, key: str) -> dict[str, Any] | None:
        """Return the newest state of a job; None if there is none that loads."""
        if not self.state_path(key).exists():
            return None
        try:
            uri = f"local://{WORK_FOLDER}/{key}.pt"
            return load_checkpoint(uri=uri, artifacts_root=self._folder)[0]
        except CheckpointError:
            return None  # it begins anew, with the same result

    def save_state(self, key: str, step: int, state: dict[str, Any]) -> None:
        """Store the state of a job."""
        save_checkpoint(
            state_dict=state,
            uri=f"local://{WORK_FOLDER}/{key}.pt",
            metadata=self.metadata(key, step),
            artifacts_root=self._folder,
        )

    def _publish(self, key: str, course: "_Course") -> None:
        """Store the members of a finished job, then what it made of them."""
        members: list[ZooMember] = []
        for index in range(course.population.count):
            chosen = course.chosen(index)
            final = course.snapshot(chosen["final"], index)
            base = key if self._config.method in _ALONE else f"{key}-{index}"
            last = f"{base}-final" if self._config.method in _TIERED else base
            for tier, position in chosen.items():
                name = f"{base}-{tier}" if self._config.method in _TIERED else base
                policies = course.snapshot(position, index)
                played = course.measure(final, policies)
                members.append(
                    self._store(name, last, tier, course.steps[position], policies, played)
                )
        facts: dict[str, Any] = {
            "members": [member.model_dump(mode="json") for member in members],
            "steps": course.steps,
            "curves": [course.curve(index) for index in range(course.population.count)],
        }
        write_sealed_json(self._folder / JOBS_FOLDER / f"{key}.json", facts, kind=_RESULT_KIND)

    def _store(
        self,
        name: str,
        counterpart: str,
        tier: Tier,
        step: int,
        policies: MemberPolicies,
        played: PairEpisodes,
    ) -> ZooMember:
        config, events = self._config, events_of(self._config.task)
        member = ZooMember(
            name=name,
            family=config.method,
            class_name=ZOO_MEMBER,
            seed=config.seed,
            step=step,
            tier=tier,
            split="held_out" if config.method == "behavior" else "public",
            counterpart=counterpart,
            skill=played.skill(),
            features=dict(zip(events.names, played.events.mean(axis=0).tolist(), strict=True)),
            preference=self._preference(name),
        )
        uri = f"local://{member.file}"
        about = {"algorithm": config.method, "seed": config.seed, "step": step}
        for seat, network in policies.networks(task={"id": config.task}, facts=about).items():
            save_policy_file(network, policy_path(self._folder / str(member.file), seat))
        save_checkpoint(
            state_dict=policies.state_dict(),
            uri=uri,
            metadata=self.metadata(name, step, tier=tier),
            artifacts_root=self._folder,
        )
        digest = read_metadata(uri=uri, artifacts_root=self._folder).sha256
        return member.model_copy(update={"sha256": digest})

    def _preference(self, name: str) -> dict[str, float]:
        if self._config.method != "behavior":
            return {}
        weights = preferences_of(self._config)[int(name.rpartition("-")[2])]
        return dict(zip(events_of(self._config.task).names, weights.tolist(), strict=True))


class _Course:
    """The training of one job: rollouts, and evaluations at even distances."""

    def __init__(
        self, runner: ZooJobRunner, key: str, population: Population, stage: PairEnv
    ) -> None:
        self._runner, self._key, self.population, self._stage = runner, key, population, stage
        self._config = population.config
        total = population.iterations
        marks = self._config.snapshots
        self._marks = sorted({round(k * total / marks) for k in range(marks + 1)})
        self._snapshots: list[list[dict[str, Any]]] = []
        self._returns: list[list[float]] = []

    @property
    def steps(self) -> list[int]:
        """Environment steps per policy at each evaluation."""
        share = self._config.num_envs * self._config.ppo.rollout_length
        return [
            mark * share * self._config.iterations // self.population.iterations
            for mark in self._marks
        ]

    def run(self, progress_file: Path) -> None:
        """Train to the end, from the newest state; ``progress_file`` gets a byte per rollout."""
        begin = self._resume()
        progress_file.parent.mkdir(parents=True, exist_ok=True)
        with progress_file.open("ab") as progress:
            progress.truncate(begin)
            for iteration in range(begin, self.population.iterations + 1):
                if iteration in self._marks[len(self._returns) :]:
                    self._evaluate(iteration)
                if iteration < self.population.iterations:
                    self.population.iterate(iteration)
                    progress.write(b".")
                    progress.flush()

    def snapshot(self, position: int, index: int) -> MemberPolicies:
        """Return member ``index`` as it was at evaluation ``position``; -1 is the last."""
        return MemberPolicies.from_state_dict(self._snapshots[position][index])

    def curve(self, index: int) -> list[float]:
        """Return the mean scores of member ``index`` at every evaluation."""
        return [row[index] for row in self._returns]

    def chosen(self, index: int) -> dict[Tier, int]:
        """Return which evaluation each tier of member ``index`` is taken from."""
        last = len(self._marks) - 1
        if self._config.method not in _TIERED:
            return {"final": last}
        middle = halfway(self.curve(index), window=self._config.smoothing)
        return {"init": 0, "mid": middle, "final": last}

    def measure(self, ego: MemberPolicies, partner: MemberPolicies) -> PairEpisodes:
        """Play the episodes that every member of the zoo is measured in."""
        dims = self._stage.observation_dims
        return play(
            self._stage,
            lambda states: ego.ego.act(states[0][:, : dims[0]]),
            lambda states: partner.partner.act(states[1][:, : dims[1]]),
            horizon=self._config.horizon,
            events=events_of(self._config.task),
            seed=episode_seed(self._config),
        )

    def _resume(self) -> int:
        state = self._runner.load_state(self._key)
        if state is None:
            return 0
        self.population.load_state_dict(state["population"])
        self._snapshots, self._returns = state["snapshots"], state["returns"]
        return int(state["iteration"])

    def _evaluate(self, iteration: int) -> None:
        """Play everybody with itself, keep who they are now, and store the state."""
        members = [self.population.member(k) for k in range(self.population.count)]
        self._returns.append([float(self.measure(m, m).returns.mean()) for m in members])
        kept = [member.state_dict() for member in members]
        if self._config.method not in _TIERED:
            self._snapshots = [[]] * len(self._snapshots)  # only the last one is wanted
        self._snapshots.append(kept)
        self._runner.save_state(
            self._key,
            self.steps[len(self._returns) - 1],
            {
                "iteration": iteration,
                "population": self.population.state_dict(),
                "snapshots": self._snapshots,
                "returns": self._returns,
            },
        )


def progress_path(folder: Path, key: str) -> Path:
    """Return the file that holds one byte per finished rollout of a job."""
    return folder / WORK_FOLDER / f"{key}.progress"


def verify_members(folder: Path, manifest: ZooManifest) -> None:
    """Raise unless every learned member's file has the digest of the manifest.

    Raises:
        IntegrityError: One has not.
        CheckpointError: One is missing or damaged.
    """
    for member in manifest.members:
        if member.sha256 is None:
            continue
        found = read_metadata(uri=f"local://{member.file}", artifacts_root=folder).sha256
        if found != member.sha256:
            raise digest_error(folder, member, found)


def finished_members(folder: Path, key: str) -> list[ZooMember] | None:
    """Return what a job made; None if it is not finished or a file of it is not what it made."""
    path = folder / JOBS_FOLDER / f"{key}.json"
    try:
        facts = read_sealed_json(path, kind=_RESULT_KIND)
        members = [ZooMember.model_validate(entry) for entry in facts["members"]]
        digest_of = partial(read_metadata, artifacts_root=folder)
        same = all(digest_of(uri=f"local://{m.file}").sha256 == m.sha256 for m in members)
    except (IntegrityError, CheckpointError):
        return None
    return members if same else None
