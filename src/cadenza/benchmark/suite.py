"""A suite: the same kinds of ego on several tasks, judged beside partners that none of them met.

File:     `SuiteConfig`; ``configs/suites`` has the shipped ones.
Steps:    of each task a population for the egos (``zoo``), one that judges them (``judges``, held
          out), egos in self-play (``self-play``), all other egos (``egos/NAME``), best responses
          to every partner of the judgement (``best-responses``), the judgement (``evaluation``);
          then one page, one leaderboard and ``result.json``.
Egos:     ``partners: self`` are the ends of self-play runs, ``one`` trains beside the partner of
          the training's file, ``zoo`` beside the population, one member drawn per episode. All
          are given the same number of environment frames, of which they take whole rollouts or
          batches. Self-play learns from the rows of both robots, and without the safety filter.
Judged:   every ego and training seed from the same starts, under the filter of the training.
Resume:   every step is a folder that goes on by itself and does nothing twice. The request with
          the digest of the code stands in ``suite.json``: another one is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from cadenza.aht.config import EgoAHTConfig, load_config
from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.cells import Name, PolicyChoice
from cadenza.benchmark.evaluation_run import EvaluationConfig, PartnerChoice, run_evaluation
from cadenza.benchmark.output_folder import OutputMode, claim, open_output_folder
from cadenza.benchmark.populations import beside_zoos
from cadenza.benchmark.reporting import SealedRun, load_run, report_view
from cadenza.benchmark.tasks import TaskSpec, get_task
from cadenza.benchmark.training_seeds import (
    SeedRunner,
    TrainedSeed,
    judgement,
    seed_config,
    train_runs,
)
from cadenza.benchmark.zoo.build import train_zoo
from cadenza.benchmark.zoo.config import UNTRAINED, ZooConfig
from cadenza.benchmark.zoo.responses import RESPONSES_JSON, ResponseConfig, train_responses
from cadenza.core.checkpoints import LOCAL_URI_SCHEME
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.fork_server import preload
from cadenza.core.key_values import merged
from cadenza.core.progress import StageReport
from cadenza.core.shipped_configs import find_config, source_checkout
from cadenza.core.signals import ends_on_signals
from cadenza.core.strict_json import read_sealed_json
from cadenza.core.yaml_files import read_yaml
from cadenza.evaluation.best_responses import BestResponses, load_best_responses
from cadenza.evaluation.report.analysis import Numbers, analyse
from cadenza.evaluation.report.view import ReportView
from cadenza.learn.settings import Count, FrozenModel
from cadenza.partners.zoo_manifest import ZooManifest, ZooMember, read_manifest

REQUEST_NAME: Final = "suite.json"
_KIND: Final = "cadenza-suite"
#: Seeds of the judgement, the starts of all egos; apart from those of trainings and validation.
_SEEDS: Final = tuple(range(200, 205))
#: Fields of a budget that ``--scale`` multiplies, and the least they come to.
_FEWEST: Final = {"steps": 1, "episodes": 2 * len(_SEEDS), "total_frames": 1}
Company: TypeAlias = Literal["self", "one", "zoo"]
Population: TypeAlias = Literal["zoo", "judges", "self-play"]


class Ego(FrozenModel):
    """One kind of ego.

    Attributes:
        partners: Company whom it trains.
        algo: Algorithm of `cadenza train`.
        settings: Settings of its training, on top of the task's.
        optional: Whether it is trained only when it is named.
    """

    partners: Company
    algo: str = "ppo"
    settings: tuple[str, ...] = ()
    optional: bool = False


class HeldOut(FrozenModel):
    """A scripted partner of the judgement; ``options`` are those of its class."""

    name: Name
    class_name: str
    options: dict[str, str] = Field(default_factory=dict[str, str])


class SuiteTask(FrozenModel):
    """One task.

    Attributes:
        training: Shipped configuration, or file, of the egos' trainings; its first partner is the
            one of egos beside one partner.
        settings: Settings of all trainings.
        judged: Options of the environment that are otherwise in the judgement.
        zoo: Settings of the population that egos train with, as of `ZooConfig`.
        judges: Settings of the held-out population; None for scripted partners only.
        held_out: Scripted partners that no ego trains with.
        best_responses: What is spent on each best response; None for none.
        optional: Whether it is played only when it is named.
    """

    training: str
    settings: tuple[str, ...] = ()
    judged: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    zoo: dict[str, Any]
    judges: dict[str, Any] | None = None
    held_out: tuple[HeldOut, ...] = ()
    best_responses: dict[str, Any] | None = None
    optional: bool = False


class SuiteConfig(FrozenModel):
    """A suite.

    Attributes:
        title: What it is, in one line.
        summary: What it tells, in one or two sentences.
        seeds: Training seeds of each ego, from 0.
        episodes: Episodes of the judgement, of each ego and seed beside each partner; two or more
            from each of five evaluation seeds.
        references: Egos that the others are compared with.
        egos: Kinds of ego, by name.
        tasks: Tasks, by name.
    """

    title: str
    summary: str
    seeds: Count = Field(default=3, ge=1)
    episodes: Count = Field(default=50, ge=2 * len(_SEEDS))
    references: tuple[str, ...] = ()
    egos: dict[Name, Ego] = Field(min_length=1)
    tasks: dict[Name, SuiteTask] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if any("seed" in {**task.zoo, **(task.judges or {})} for task in self.tasks.values()):
            raise ValueError("seed: expected none, since no two populations may begin alike")
        if unknown := set(self.references) - set(self.egos):
            raise ValueError(
                f"references: expected some of {', '.join(self.egos)}, got {', '.join(unknown)}"
            )
        return self

    def reduced(
        self,
        *,
        tasks: Sequence[str] = (),
        egos: Sequence[str] = (),
        seeds: int | None = None,
        scale: float = 1.0,
    ) -> "SuiteConfig":
        """Return the suite with some tasks, some egos and the references, other seeds or budgets.

        Raises:
            ConfigurationError: A task or an ego is unknown, or a package is not installed.
        """
        chosen = _chosen("--task", tasks, self.tasks)
        named = _chosen("--ego", egos, self.egos)
        changes: dict[str, Any] = {
            "tasks": {name: self.tasks[name] for name in chosen},
            "egos": {n: e for n, e in self.egos.items() if n in {*self.references, *named}},
        }
        if seeds is not None:
            changes["seeds"] = seeds
        if scale != 1.0:
            changes["episodes"] = _scaled("episodes", self.episodes, scale)
            changes["tasks"] = {
                name: _scaled_task(self.plan(name, Path()), scale) for name in chosen
            }
        return self.model_copy(update=changes)

    def plan(self, name: str, folder: Path) -> "TaskPlan":
        """Return what is done for a task, in ``folder``."""
        return TaskPlan(suite=self, name=name, task=self.tasks[name], folder=folder)


def _chosen(
    option: str, names: Sequence[str], known: Mapping[str, Ego] | Mapping[str, SuiteTask]
) -> Sequence[str]:
    """Return the names of an option; without any, all that are not optional."""
    for name in names:
        if name not in known:
            refuse(ConfigurationError, option, expected=f"one of {', '.join(known)}", got=name)
    return names or [name for name, each in known.items() if not each.optional]


def _scaled(key: str, value: int, scale: float) -> int:
    return max(_FEWEST[key], ceil(value * scale))


def _scaled_task(plan: "TaskPlan", scale: float) -> SuiteTask:
    """Return the task with budgets times ``scale``."""

    def less(budget: Mapping[str, Any], whole: ZooConfig | ResponseConfig) -> dict[str, Any]:
        return {
            **budget,
            **{k: _scaled(k, getattr(whole, k), scale) for k in ("steps", "episodes")},
        }

    task, frames = plan.task, _scaled("total_frames", plan.training.total_frames, scale)
    changes: dict[str, Any] = {
        "settings": (*task.settings, f"total_frames={frames}"),
        "zoo": less(task.zoo, plan.zoo("zoo")),
    }
    if task.judges is not None:
        changes["judges"] = less(task.judges, plan.zoo("judges"))
    if task.best_responses is not None:
        changes["best_responses"] = less(task.best_responses, plan.responses)
    return task.model_copy(update=changes)


def load_suite(path: Path) -> SuiteConfig:
    """Return the suite in a YAML file, or the shipped one of that name.

    Raises:
        ConfigurationError: There is none.
        pydantic.ValidationError: It is not one.
    """
    return SuiteConfig.model_validate(read_yaml(find_config(path, "suites")))


def _training(task: SuiteTask, algo: str, settings: Sequence[str]) -> EgoAHTConfig:
    """Return the configuration of an ego's training, beside the file's partners."""
    path = find_config(Path(task.training), "train")
    return load_config(config_path=path, overrides=[f"algo={algo}", *task.settings, *settings])


class Step(NamedTuple):
    """One step of a task: its folder, what is done, and the frames it takes in all."""

    folder: str
    what: str
    frames: int


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What a suite does for one task."""

    suite: SuiteConfig
    name: str
    task: SuiteTask
    folder: Path

    @cached_property
    def training(self) -> EgoAHTConfig:
        """The training that all egos have in common."""
        return _training(self.task, "ppo", ())

    @property
    def spec(self) -> TaskSpec:
        """The registered task."""
        return get_task(self.training.env.task)

    @property
    def seeds(self) -> range:
        """Training seeds."""
        return range(self.suite.seeds)

    def egos(self, partners: Company) -> list[str]:
        """Return the names of the egos that train so."""
        return [name for name, ego in self.suite.egos.items() if ego.partners == partners]

    @property
    def populations(self) -> list[Population]:
        """What is trained before the other egos, in order."""
        judges: list[Population] = ["judges"] if self.task.judges is not None else []
        selves: list[Population] = ["self-play"] if self.egos("self") else []
        zoos: list[Population] = ["zoo"] if self.egos("zoo") else []
        return [*zoos, *judges, *selves]

    def zoo(self, kind: Population) -> ZooConfig:
        """Return a population; that of self-play has an ego for each training seed."""
        env = self.training.env
        own = (self.task.judges or {}) if kind == "judges" else self.task.zoo
        if kind == "self-play":
            frames = self.training.total_frames
            own = {**own, "method": "fcp", "population": self.suite.seeds, "steps": frames}
        seeds = {"zoo": 1, "judges": 2, "self-play": 3}  # no two populations begin alike
        common = {
            "task": env.task,
            "episode_length": env.episode_length,
            "options": env.options,
            "seed": seeds[kind],
        }
        plain = ZooConfig.model_validate({"method": own["method"], **common}).model_dump()
        return ZooConfig.model_validate(merged(plain, own))

    def alone(self, name: str) -> EgoAHTConfig:
        """Return the training of an ego beside the partners of its file."""
        ego = self.suite.egos[name]
        return _training(self.task, ego.algo, ego.settings)

    def configuration(self, name: str) -> EgoAHTConfig:
        """Return the training of an ego; its population must be there."""
        config = self.alone(name)
        if self.suite.egos[name].partners == "one":
            own = {"partner": config.trained_with[0], "partners": ()}
            return EgoAHTConfig.model_validate(config.model_dump() | own)
        settings = config.model_dump(mode="json") | {"partners": ()}
        return EgoAHTConfig.model_validate(beside_zoos(settings, [self.folder / "zoo"]))

    @property
    def responses(self) -> ResponseConfig:
        """What is spent on each best response."""
        return ResponseConfig.model_validate(
            merged(ResponseConfig().model_dump(), self.task.best_responses or {})
        )

    def finals(self, kind: Literal["judges", "self-play"]) -> list[ZooMember]:
        """Return the ends of a population's trainings."""
        return [m for m in read_manifest(self.folder / kind).members if m.tier == "final"]

    def cast(self) -> ZooManifest:
        """Return all partners of the judgement as one zoo, in the options of the judgement."""
        env, judges = self.training.env, list[ZooMember]()
        if self.task.judges is not None:
            judges = self.finals("judges")
        scripted = [
            ZooMember(name=h.name, family=h.name, class_name=h.class_name, options=h.options)
            for h in self.task.held_out
        ]
        options = {**env.options, **self.task.judged}
        played = ZooConfig(
            method="scripted", task=env.task, episode_length=env.episode_length, options=options
        )
        return played.manifest((*scripted, *judges))

    def steps(self) -> list[Step]:
        """Return what is done, in order, with the frames that it takes."""
        found, partners = list[Step](), len(self.task.held_out)
        for kind in self.populations:
            zoo = self.zoo(kind)
            what = f"{zoo.method}, {zoo.population} policies"
            if kind == "judges":
                what, partners = f"{what}, held out", partners + zoo.population
            elif kind == "self-play":
                what = f"{zoo.population} egos in self-play"
            frames = zoo.iterations * zoo.rollout_steps * zoo.population
            found.append(Step(kind, what, 0 if zoo.method in UNTRAINED else frames))
        for name in (*self.egos("one"), *self.egos("zoo")):
            ego, config = self.suite.egos[name], self.alone(name)
            company = "one partner" if ego.partners == "one" else "the zoo"
            if self.alone(name).brings_partner:
                company = "copies of itself"
            what = f"{ego.algo} beside {company}, {self.suite.seeds} seeds"
            frames = config.total_iterations * config.env.num_envs * self.suite.seeds
            found.append(Step(f"egos/{name}", what, frames))
        if self.task.best_responses is not None:
            spent = self.responses
            what, rollout = f"to {partners} partners", spent.num_envs * spent.ppo.rollout_length
            frames = max(1, spent.steps // rollout) * rollout * spent.seeds * partners
            found.append(Step("best-responses", what, frames))
        each = self.suite.episodes * self.suite.seeds * len(self.suite.egos) * partners
        found.append(Step("evaluation", f"{each} episodes beside {partners} partners", 0))
        return found


@dataclass(frozen=True, kw_only=True)
class JudgedTask:
    """A task that is played: its plan, its sealed results, and its best responses, if any."""

    plan: TaskPlan
    runs: tuple[SealedRun, ...]
    best: BestResponses | None

    @cached_property
    def view(self) -> ReportView:
        """What a report shows of it."""
        return report_view(self.runs, best_responses=self.best, by_method=True)

    @cached_property
    def numbers(self) -> Numbers:
        """The numbers of `view`."""
        return analyse(self.view)


@dataclass(frozen=True, kw_only=True)
class SuiteRunner:
    """Where and by what means a suite is played.

    Attributes:
        out: Output folder.
        workers: Processes; None for one per core.
        progress: Called with the step, what is done of it and in all, and what was last seen.
        command: Command line that repeats it, for the sealed results.
    """

    out: Path
    workers: int | None = None
    progress: StageReport | None = None
    command: str = "cadenza suite run"

    @ends_on_signals
    def run(self, suite: SuiteConfig, *, mode: OutputMode = "resume") -> list[JudgedTask]:
        """Do every step that is not done, task by task.

        Raises:
            ConfigurationError: The folder holds another suite.
            MissingExtraError: A task's package is not installed.
            CadenzaError: A step failed; all that was done is kept.
        """
        preload("torch._dynamo")  # else every training's process imports it anew
        with open_output_folder(self.out, mode=mode):
            plans = [suite.plan(name, self.out / name) for name in suite.tasks]
            codes = {plan.name: code_digest(plan.spec, ()) for plan in plans}
            asked = {"suite": suite.model_dump(mode="json"), "code_sha256": codes}
            claim(self.out / REQUEST_NAME, asked, kind=_KIND)
            for plan in plans:
                self._play(plan)
            return read_suite(self.out)

    def _play(self, plan: TaskPlan) -> None:
        """Do all steps of one task."""
        for kind in plan.populations:
            train_zoo(
                plan.zoo(kind),
                out=plan.folder / kind,
                workers=self.workers,
                mode="resume",
                progress=self._progress(plan, kind),
            )
        trained = self._train_egos(plan)
        if plan.task.best_responses is not None:
            train_responses(
                plan.cast(),
                plan.responses,
                zoo=plan.folder / "judges",
                out=plan.folder / "best-responses",
                workers=self.workers,
                mode="resume",
                progress=self._progress(plan, "best responses"),
            )
        run_evaluation(
            evaluation_of(plan, trained),
            out=plan.folder / "evaluation",
            workers=self.workers,
            resume=True,
            repro_command=self.command,
            progress=self._progress(plan, "evaluation"),
        )

    def _progress(self, plan: TaskPlan, step: str) -> Any:
        return self.progress and partial(self.progress, f"{plan.name}: {step}")

    def _train_egos(self, plan: TaskPlan) -> dict[str, tuple[TrainedSeed, ...]]:
        """Train all egos but those in self-play, every seed of each a job."""
        configs = {n: plan.configuration(n) for n in (*plan.egos("one"), *plan.egos("zoo"))}
        runners = {n: SeedRunner(out=plan.folder / "egos" / n, workers=1) for n in configs}
        for runner in runners.values():
            with open_output_folder(runner.out, mode="resume"):
                pass  # it is ours, and nobody else works there
        runs = {
            f"{name} seed {seed}": seed_config(config, seed, runners[name].out)
            for name, config in configs.items()
            for seed in plan.seeds
        }
        if runs:
            train_runs(runs, workers=self.workers, report=self._progress(plan, "egos"))
        found: dict[str, tuple[TrainedSeed, ...]] = {}
        for name, runner in runners.items():  # which checks them and puts the policies in place
            found[name], _ = runner.run(
                configs[name], list(plan.seeds), resume=True, episodes_per_seed=0
            )
        return found


def evaluation_of(plan: TaskPlan, trained: Mapping[str, Sequence[TrainedSeed]]) -> EvaluationConfig:
    """Return the judgement of a task."""
    cast = plan.cast()
    files = {name: [f"egos/{name}/{one.address}" for one in own] for name, own in trained.items()}
    for name in plan.egos("self"):
        files[name] = [f"self-play/{member.file}" for member in plan.finals("self-play")]
    return judgement(
        plan.training,
        options=cast.options,
        policies=tuple(
            PolicyChoice(
                name=f"{name}_seed{seed}",
                source=f"{LOCAL_URI_SCHEME}{file}",
                method=name,
                training_seed=seed,
            )
            for name in plan.suite.egos
            for seed, file in zip(plan.seeds, files[name], strict=True)
        ),
        partners=tuple(
            PartnerChoice(name=member.name, **member.played(f"{LOCAL_URI_SCHEME}judges/"))
            for member in cast.members
        ),
        seeds=_SEEDS,
        episodes_per_seed=plan.suite.episodes // len(_SEEDS),
        artifacts_root=plan.folder,
    )


def read_suite(out: Path) -> list[JudgedTask]:
    """Return the played tasks of the suite in a folder.

    Raises:
        IntegrityError: A file of it is missing or was changed.
        ConfigurationError: No task of it is played to its end.
    """
    suite = SuiteConfig.model_validate(read_sealed_json(out / REQUEST_NAME, kind=_KIND)["suite"])
    found: list[JudgedTask] = []
    for name in suite.tasks:
        plan = suite.plan(name, out / name)
        bundles = sorted((plan.folder / "evaluation" / "bundles").glob("*/"))
        best = plan.folder / "best-responses" / RESPONSES_JSON
        if bundles:
            runs = tuple(load_run(folder, repo_path=source_checkout()) for folder in bundles)
            bound = load_best_responses(best) if best.is_file() else None  # if one beats chance
            found.append(JudgedTask(plan=plan, runs=runs, best=bound))
    if not found:
        refuse(
            ConfigurationError,
            f"{out}",
            expected="a suite with a task that is played",
            got="none",
            do="run it on",
        )
    return found
