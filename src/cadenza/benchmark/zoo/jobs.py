"""The jobs of a population: what trains together, resumed where it was killed, measured, stored.

Folder of a zoo, beside `cadenza.partners.zoo_manifest`:
    request.json      what was asked for; another request is refused
    jobs/JOB.json     sealed: the members that a finished job made, and its learning curves
    work/JOB.pt       newest state of an unfinished job
Promise:  a job is a pure function of the request. Its state is stored at every evaluation, and its
          result is one atomic file after its members.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from cadenza.benchmark.executor import Note, NotingRunner
from cadenza.benchmark.tasks import TaskSpec, adopt
from cadenza.benchmark.zoo.behavior import PreferringSelfPlay, preferences_of
from cadenza.benchmark.zoo.brdiv import Confederates
from cadenza.benchmark.zoo.comedi import DiverseMembers
from cadenza.benchmark.zoo.config import UNTRAINED, Method, ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.fcp import SelfPlay, halfway
from cadenza.benchmark.zoo.lbrdiv import LagrangianConfederates
from cadenza.benchmark.zoo.mep import EntropyPopulation
from cadenza.benchmark.zoo.pairs import (
    PairEnv,
    PairEpisodes,
    PairPolicy,
    open_pairs,
    play_pairs,
)
from cadenza.benchmark.zoo.stacked import Population
from cadenza.core.checkpoints import (
    CheckpointMetadata,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
)
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import CheckpointError, IntegrityError
from cadenza.core.seeding import derive_substream
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.learn.nn.portable import PortableNetwork, policy_path, save_policy_file
from cadenza.partners.zoo_manifest import Skill, Tier, ZooMember
from cadenza.partners.zoo_member import ZOO_MEMBER, MemberPolicies

JOBS_FOLDER: Final = "jobs"
WORK_FOLDER: Final = "work"
REQUEST_NAME: Final = "request.json"
_RESULT_KIND: Final = "zoo job"
#: Methods whose policies train on their own, one job each, stacked; the others are one job.
ALONE: Final[frozenset[Method]] = frozenset({"fcp", "behavior"})
#: Copies of the task in which members are measured at once, unless one has more episodes.
STAGE_COPIES: Final = 1024
#: Methods whose one job has a block of environments for each policy.
_TOGETHER: Final[frozenset[Method]] = frozenset({"mep"})
#: Methods that keep partners of every skill.
_TIERED: Final = frozenset({"fcp", "mep"})
#: What was stored of an unfinished job.
State: TypeAlias = Mapping[str, Any]
_BUILDERS: Final[dict[Method, Callable[..., Population]]] = {
    "fcp": SelfPlay,
    "behavior": PreferringSelfPlay,
    "mep": EntropyPopulation,
    "brdiv": Confederates,
    "lbrdiv": LagrangianConfederates,
    "comedi": DiverseMembers,
}


def job_keys(config: ZooConfig) -> list[str]:
    """Return the names of the jobs of a population; a scripted one has none."""
    if config.method in UNTRAINED:
        return []
    if config.method in ALONE:
        return [f"{config.method}-s{config.seed}-{k}" for k in range(config.population)]
    return [f"{config.method}-s{config.seed}"]


def rollouts_of(config: ZooConfig) -> int:
    """Return the rollouts of one job."""
    alone = config.method in ALONE or config.method in _TOGETHER
    return config.iterations * (1 if alone else config.population)


def episode_seed(config: ZooConfig) -> int:
    """Return the root of the episodes in which members are measured, equal for all of a zoo."""
    return derive_substream("zoo.measurement", root_seed=config.seed).integer_seed()


class TrainingRunner(NotingRunner):
    """Trains what jobs hold, several as one where their policies train alone; stores the results.

    What a job makes does not depend on those that it is trained with.

    Args:
        folder: Where.
        config: What is trained.
        task: The task of ``config``, which a worker may not know,
        modules: and what it is defined in.
        origin: Commit and project digest.
    """

    def __init__(
        self,
        *,
        folder: Path,
        config: ZooConfig,
        task: TaskSpec,
        modules: tuple[str, ...],
        origin: tuple[str, str],
    ) -> None:
        adopt(task, modules)
        self.folder: Path = folder
        self.config: ZooConfig = config
        self._origin = origin

    def __call__(self, key: str, /) -> None:
        """Do the job ``key``, from its newest state if it has one."""
        for _ in self.batch([key]):
            pass

    def batch(self, keys: Sequence[str], /) -> Iterator[tuple[str, bytes]]:
        """Do the jobs ``keys`` as one, from their newest states; yield each when it is stored.

        Jobs that were killed at different marks catch up first.
        """
        states = {key: self.load_state(key) for key in keys}
        begun = {key: -1 if s is None else int(s["iteration"]) for key, s in states.items()}
        with single_torch_thread():
            while len(marks := sorted(set(begun.values()))) > 1:
                behind = [key for key in keys if begun[key] == marks[0]]
                with closing(self.course(behind, states)) as course:
                    course.run(until=marks[1])
                states |= {key: self.load_state(key) for key in behind}
                begun |= dict.fromkeys(behind, marks[1])
            with closing(self.course(keys, states)) as course:
                course.run(until=None)
                course.publish()
        yield from ((key, b"") for key in keys)

    @abstractmethod
    def course(self, keys: Sequence[str], states: Mapping[str, State | None]) -> "Course":
        """Return the training of ``keys``, which all stand at one mark."""

    def metadata(self, run_id: str, step: int, **extra: Any) -> CheckpointMetadata:
        """Return the origin of a file of the zoo."""
        return CheckpointMetadata(
            run_id=run_id,
            seed=self.config.seed,
            step=step,
            git_sha=self._origin[0],
            pyproject_hash=self._origin[1],
            extra={"task": self.config.task, **extra},
        )

    def load_state(self, key: str) -> dict[str, Any] | None:
        """Return the newest state of a job; None if there is none that loads."""
        if not (self.folder / WORK_FOLDER / f"{key}.pt").exists():
            return None
        try:
            uri = f"local://{WORK_FOLDER}/{key}.pt"
            return load_checkpoint(uri=uri, artifacts_root=self.folder)[0]
        except CheckpointError:
            return None  # it begins anew, with the same result

    def save_state(self, key: str, step: int, state: dict[str, Any]) -> None:
        """Store the state of a job."""
        save_checkpoint(
            state_dict=state,
            uri=f"local://{WORK_FOLDER}/{key}.pt",
            metadata=self.metadata(key, step),
            artifacts_root=self.folder,
        )

    def save_result(self, key: str, facts: dict[str, Any], kind: str) -> None:
        """Store what a finished job made, after its policies."""
        write_sealed_json(self.folder / JOBS_FOLDER / f"{key}.json", facts, kind=kind)


class ZooJobRunner(TrainingRunner):
    """Trains and stores the members of a population."""

    def course(self, keys: Sequence[str], states: Mapping[str, State | None]) -> "Course":
        """Return the training of ``keys``."""
        config = self.config
        blocks = config.population if config.method in _TOGETHER else 1
        copies = config.num_envs * len(keys) * blocks
        env = open_pairs(config, copies, stride=config.num_envs)
        # At every evaluation the policies of the members and their mean scores; first skills.
        known: dict[str, Any] = {"snapshots": [], "returns": [], "began": []}
        return _MemberCourse(self, _BUILDERS[config.method](config, env, keys), states, known)

    def store(
        self,
        name: str,
        counterpart: str,
        tier: Tier,
        step: int,
        policies: MemberPolicies,
        played: PairEpisodes,
    ) -> ZooMember:
        """Store a member's policies; return what the manifest is to say of it."""
        config, events = self.config, events_of(self.config.task)
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
            save_policy_file(network, policy_path(self.folder / str(member.file), seat))
        save_checkpoint(
            state_dict=policies.state_dict(),
            uri=uri,
            metadata=self.metadata(name, step, tier=tier),
            artifacts_root=self.folder,
        )
        digest = read_metadata(uri=uri, artifacts_root=self.folder).sha256
        return member.model_copy(update={"sha256": digest})

    def _preference(self, name: str) -> dict[str, float]:
        if self.config.method != "behavior":
            return {}
        weights = preferences_of(self.config)[int(name.rpartition("-")[2])]
        return dict(zip(events_of(self.config.task).names, weights.tolist(), strict=True))


class _Stage:
    """Where pairs are measured: the same episodes for everybody, as many at once as fit."""

    def __init__(self, config: ZooConfig) -> None:
        self._config = config
        self._most = max(1, STAGE_COPIES // config.episodes)
        self._envs: dict[int, PairEnv] = {}

    def close(self) -> None:
        """Let go of the environments."""
        for env in self._envs.values():
            env.close()

    def play(self, pairs: Sequence[tuple[PairPolicy, PairPolicy]], seed: int) -> list[PairEpisodes]:
        """Play the episodes of ``seed``: egos, partners."""
        config, played = self._config, list[PairEpisodes]()
        for first in range(0, len(pairs), self._most):
            some = pairs[first : first + self._most]
            if len(some) not in self._envs:
                self._envs[len(some)] = open_pairs(config, len(some) * config.episodes)
            env, events = self._envs[len(some)], events_of(config.task)
            played += play_pairs(env, some, horizon=config.horizon, events=events, seed=seed)
        return played


def acting(network: PortableNetwork, env: PairEnv, robot: int) -> PairPolicy:
    """Return what a policy does as ``robot`` for states of both."""
    dim = env.observation_dims[robot]
    return lambda states: network.act(states[robot][:, :dim])


class Course(ABC):
    """The training of jobs that go as one: rollouts, and evaluations at even distances.

    ``known``, of each job, is what its evaluations tell the later ones; it is stored with its state
    and begins as a copy of what is given.
    """

    def __init__(
        self,
        runner: TrainingRunner,
        population: Population,
        states: Mapping[str, State | None],
        known: Mapping[str, Any],
    ) -> None:
        self._runner, self._population = runner, population
        self._known = [copy.deepcopy(dict(known)) for _ in population.keys]
        self._stage = _Stage(population.config)
        self._config, self._keys = population.config, population.keys
        total, marks = population.iterations, self._config.snapshots
        self._marks = sorted({round(k * total / marks) for k in range(marks + 1)})
        self._begin = -1  # evaluated already
        for place, key in enumerate(self._keys):
            state = states[key]
            if state is not None:
                population.load_state_dict(place, state["population"])
                self._known[place] = {name: state[name] for name in known}
                self._begin = int(state["iteration"])

    def close(self) -> None:
        """Let go of the environments."""
        self._stage.close()
        self._population.env.close()

    @abstractmethod
    def _evaluate(self) -> None:
        """Measure everybody, and note what is to be known of it."""

    @abstractmethod
    def publish(self) -> None:
        """Store what the finished jobs made."""

    @property
    def _steps(self) -> list[int]:
        """Environment steps per policy at each evaluation."""
        config, total = self._config, self._population.iterations
        return [mark * config.rollout_steps * config.iterations // total for mark in self._marks]

    def run(self, until: int | None) -> None:
        """Train from the newest states to the evaluation at ``until``, or to the end."""
        population = self._population
        last = population.iterations if until is None else until
        for iteration in range(max(self._begin, 0), last + 1):
            for key in self._keys:
                self._runner.note(Note(key, iteration, population.iterations, ""))
            if iteration in self._marks and iteration > self._begin:
                step = self._steps[self._marks.index(iteration)]
                self._evaluate()
                for place, known in enumerate(self._known):
                    trained = {"iteration": iteration, "population": population.state_dict(place)}
                    self._runner.save_state(self._keys[place], step, {**trained, **known})
            if iteration < last:
                population.iterate(iteration)


class _MemberCourse(Course):
    """The training of members, who are measured beside themselves."""

    _runner: ZooJobRunner

    def _measure(
        self, pairs: Sequence[tuple[MemberPolicies, MemberPolicies]]
    ) -> list[PairEpisodes]:
        """Play the episodes that every member of the zoo is measured in: egos, partners."""
        env = self._population.env
        return self._stage.play(
            [(acting(e.ego, env, 0), acting(p.partner, env, 1)) for e, p in pairs],
            episode_seed(self._config),
        )

    def publish(self) -> None:
        """Store the members of finished jobs, then what each job made of them."""
        config, count = self._config, self._population.count
        stored: list[list[ZooMember]] = [[] for _ in self._keys]
        entries: list[tuple[int, int, Tier, int]] = [
            (place, index, tier, position)
            for place in range(len(self._keys))
            for index in range(count)
            for tier, position in self._chosen(place, index).items()
        ]
        pairs = [
            (self._snapshot(place, index, -1), self._snapshot(place, index, position))
            for place, index, _, position in entries
        ]
        played = zip(entries, pairs, self._measure(pairs), strict=True)
        for (place, index, tier, position), (_, own), episodes in played:
            base = self._keys[place]
            if config.method not in ALONE:
                base = f"{base}-{index}"
            name, last = base, base
            if config.method in _TIERED:
                name, last = f"{base}-{tier}", f"{base}-final"
            member = self._runner.store(name, last, tier, self._steps[position], own, episodes)
            if tier == "final" and config.method != "behavior":  # whose aim is another
                began = Skill.model_validate(self._known[place]["began"][index])
                member = member.model_copy(update={"began": began})
            stored[place].append(member)
        for place, key in enumerate(self._keys):
            facts: dict[str, Any] = {
                "members": [member.model_dump(mode="json") for member in stored[place]],
                "steps": self._steps,
                "curves": [self._curve(place, index) for index in range(count)],
                **self._population.report(),
            }
            self._runner.save_result(key, facts, _RESULT_KIND)

    def _snapshot(self, place: int, index: int, position: int) -> MemberPolicies:
        """Return a member as it was at evaluation ``position``."""
        return MemberPolicies.from_state_dict(self._known[place]["snapshots"][position][index])

    def _curve(self, place: int, index: int) -> list[float]:
        """Return the mean scores of a member at every evaluation."""
        return [row[index] for row in self._known[place]["returns"]]

    def _chosen(self, place: int, index: int) -> dict[Tier, int]:
        """Return which evaluation each tier of a member is taken from."""
        last = len(self._marks) - 1
        if self._config.method not in _TIERED:
            return {"final": last}
        middle = halfway(self._curve(place, index), window=self._config.smoothing)
        return {"init": 0, "mid": middle, "final": last}

    def _evaluate(self) -> None:
        """Play everybody with itself, and keep who they are now."""
        population, count = self._population, self._population.count
        members = [population.member(k) for k in range(len(self._keys) * count)]
        played = self._measure([(member, member) for member in members])
        for place, known in enumerate(self._known):
            own = slice(place * count, (place + 1) * count)
            known["returns"].append([float(episodes.returns.mean()) for episodes in played[own]])
            if not known["began"]:
                known["began"] = [e.skill().model_dump(mode="json") for e in played[own]]
            earlier: list[Any] = known["snapshots"]
            if self._config.method not in _TIERED:
                earlier = [[]] * len(earlier)  # only the last one is wanted
            known["snapshots"] = [*earlier, [member.state_dict() for member in members[own]]]


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
