"""Search the settings of an ego training: many short trainings, the next ones where it went well.

Output:   ``sweep.json`` (what is searched, sealed), ``trials/NNNNN.json`` (one sealed file for each
          finished trial), ``work/`` (trainings that are not), ``best.yaml`` (a configuration for
          `cadenza train`), ``report.html`` and ``result.json``.
Judged:   success, or return, of the deterministic policy at the end of its training, in the
          evaluation that every training has: on validation seeds, beside the partners of the
          training or, where it names any, beside those of `evaluation.validation`. Members of a
          zoo that are held out are refused in both places, so that no search wears out a test.
Trials:   are proposed in batches of fixed size, each from all batches before it; trial n draws from
          a stream of its own. A sweep is a pure function of its request: neither workers nor kills
          change a byte, and more trials later continue it. What a larger batch costs is that its
          trials do not learn from one another.
Pruning:  at an evaluation, a trial ends if its best value so far is below the median that finished
          trials of earlier batches had there (Golovin et al. 2017, Vizier, section 3.2).
Sampler:  tree-structured Parzen estimator (Bergstra et al. 2011), or uniform draws.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import Any, Final, Literal, TypeAlias, cast

import yaml
from pydantic import Field, ValidationError, field_validator

from cadenza.aht.config import EgoAHTConfig, PartnerConfig
from cadenza.aht.types import EvaluationRecord, EvaluationWatch
from cadenza.benchmark.builders import code_digest, require_player
from cadenza.benchmark.executor import (
    Job,
    Note,
    NotingRunner,
    default_workers,
    run_jobs,
)
from cadenza.benchmark.output_folder import OutputMode, open_output_folder
from cadenza.benchmark.populations import refuse_held_out
from cadenza.benchmark.ray_executor import RayCluster, run_jobs_on_ray
from cadenza.benchmark.tasks import TaskSpec, adopt, get_task
from cadenza.benchmark.training import HeldOutEvaluator, run_training
from cadenza.benchmark.training_seeds import seed_config
from cadenza.core.errors import ConfigurationError, NonFiniteError, NotReadyError, refuse
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_text
from cadenza.core.fork_server import preload
from cadenza.core.key_values import apply_settings
from cadenza.core.progress import StageReport
from cadenza.core.seeding import derive_substream
from cadenza.core.signals import ends_on_signals
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.core.yaml_files import parse_yaml_value
from cadenza.learn.settings import Count, FrozenModel
from cadenza.partners.registry import outside_modules

REQUEST_NAME: Final = "sweep.json"
BEST_NAME: Final = "best.yaml"
_TRIALS: Final = "trials"
_WORK: Final = "work"
_REQUEST_KIND: Final = "cadenza-sweep"
_TRIAL_KIND: Final = "cadenza-sweep-trial"
#: Evaluations of a trial where the configuration evaluates its end only.
EVALUATIONS: Final = 5
Sampler: TypeAlias = Literal["tpe", "random"]
Pruner: TypeAlias = Literal["median", "none"]
State: TypeAlias = Literal["complete", "pruned", "failed"]


class Range(FrozenModel):
    """What one setting may be: numbers from ``low`` to ``high``, or one of ``choices``.

    Whole numbers where both ends are; ``log`` draws the logarithm.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, ...]:
        """The choices, or both ends."""
        return self.choices or (self.low, self.high)

    def distribution(self, optuna: Any) -> Any:
        """Return it as Optuna's distribution; choices by index, for they may be lists."""
        if self.choices:
            return optuna.distributions.CategoricalDistribution(tuple(range(len(self.choices))))
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        kind = "IntDistribution" if whole else "FloatDistribution"
        return getattr(optuna.distributions, kind)(self.low, self.high, log=self.log)

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(shown, self.choices))
        return f"{shown(self.low)} to {shown(self.high)}{', log' if self.log else ''}"


def shown(value: Any) -> str:
    """Return a setting for people: numbers with four digits, others as in a YAML file."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value).strip('"')


def parse_range(key: str, value: Any) -> Range | None:
    """Return the range that a setting's value stands for; None if it is one value.

    ``1e-5..1e-2`` and ``log:1e-5..1e-2`` are numbers between two ends, ``a,b,c`` are choices, and
    so is the list of a file's section.

    Raises:
        ConfigurationError: Ends are no numbers, not in order, or not above 0 beside ``log:``.
    """
    if isinstance(value, list):
        return Range(choices=tuple(cast("list[Any]", value)))
    if not isinstance(value, str):
        return None
    text = value.strip()
    log, bounds = text.startswith("log:"), text.removeprefix("log:").split("..")
    if len(bounds) == 2:
        low, high = (parse_yaml_value(key, bound) for bound in bounds)
        numbers = all(isinstance(end, int | float) and type(end) is not bool for end in (low, high))
        if not numbers or not low < high or (log and not low > 0):
            advice = "LOW..HIGH" if not log else "log:LOW..HIGH with 0 < LOW"
            refuse(ConfigurationError, key, expected=f"{advice}, LOW below HIGH", got=text)
        return Range(low=low, high=high, log=log)
    choices: Any = parse_yaml_value(key, f"[{text}]") if "," in text else [text]
    return Range(choices=tuple(choices)) if len(choices) > 1 else None


def split_ranges(words: Sequence[str]) -> tuple[list[str], dict[str, Range]]:
    """Return the settings among ``KEY=VALUE`` words, and the ranges by key."""
    settings, ranges = list[str](), dict[str, Range]()
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        found = parse_range(key, text)
        if found is None:
            settings.append(word)
        else:
            ranges[key] = found
    return settings, ranges


def section_ranges(section: Mapping[str, Any], place: str = "") -> dict[str, Range]:
    """Return the ranges of a file's section ``sweep``, keys dotted or nested, below ``place``.

    Raises:
        ConfigurationError: A value is no range.
    """
    found: dict[str, Range] = {}
    for name, value in section.items():
        key = f"{place}{name}"
        if isinstance(value, dict):
            found |= section_ranges(cast("dict[str, Any]", value), f"{key}.")
            continue
        parsed = parse_range(key, value)
        if parsed is None:
            refuse(
                ConfigurationError,
                f"sweep.{key}",
                expected="LOW..HIGH, log:LOW..HIGH or a list of choices",
                got=repr(value),
            )
        found[key] = parsed
    return found


class SweepConfig(FrozenModel):
    """What is searched, and how.

    Attributes:
        training: What all trials have in common.
        space: Range of every searched setting, by its dotted key.
        seeds: Training seeds of each trial; its value is the mean over them.
        sampler: How settings are drawn.
        pruner: What ends a trial early, by its first training seed.
        batch: Trials that are proposed together.
        seed: Root of the draws.
    """

    training: EgoAHTConfig
    space: dict[str, Range] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    batch: Count = Field(default=4, ge=1)
    seed: Count = Field(default=0, ge=0)

    @field_validator("space")
    @classmethod
    def _in_order(cls, value: dict[str, Range]) -> dict[str, Range]:
        return dict(sorted(value.items()))  # in which settings are drawn, whoever wrote them how

    @property
    def task(self) -> TaskSpec:
        """The task."""
        return get_task(self.training.env.task)

    @property
    def objective(self) -> str:
        """The figure of an evaluation that trials are compared by, the higher the better."""
        return "success_rate" if self.task.has_success else "mean_episode_reward"

    @property
    def judges(self) -> tuple[PartnerConfig, ...]:
        """Partners that trials are judged beside."""
        return self.training.evaluation.validation or self.training.trained_with

    def plain(self, parameters: Mapping[str, Any]) -> EgoAHTConfig:
        """Return the training's configuration with the settings of a trial.

        Raises:
            pydantic.ValidationError: The settings do not fit together.
        """
        words = [f"{key}={json.dumps(value)}" for key, value in parameters.items()]
        settings = apply_settings(self.training.model_dump(mode="json"), words)
        return EgoAHTConfig.model_validate(settings)

    def configuration(self, parameters: Mapping[str, Any]) -> EgoAHTConfig:
        """Return what a trial trains with: evaluated on the way where trials may be pruned."""
        config = self.plain(parameters)
        changes: dict[str, Any] = {"validation": ()}  # every evaluation is beside those
        if self.pruner != "none" and not 0 < config.evaluation.every_frames < config.total_frames:
            changes["every_frames"] = max(1, config.total_frames // EVALUATIONS)
        evaluation = config.evaluation.model_copy(update=changes)
        return config.model_copy(update={"evaluation": evaluation})

    def require_sound(self) -> None:
        """Raise unless every key is known, its values are in range, and no partner is held out.

        Raises:
            ConfigurationError: One is not, or `seed` is searched.
        """
        met = (*self.judges, *self.training.trained_with)
        refuse_held_out(met)
        for partner in met:
            require_player(self.task, partner.class_name)
        for key, values in self.space.items():
            if key in ("seed", "artifacts_root", "log_dir"):
                refuse(ConfigurationError, key, expected="settings of the learner", got=key)
            for value in values.ends:
                try:
                    self.configuration({key: value})
                except ValidationError as error:
                    own = [e for e in error.errors() if _is_about(key, e["loc"])]
                    if own:  # what only two settings together can be is left to the trials
                        got = f"{shown(value)} ({own[0]['msg']})"
                        refuse(ConfigurationError, key, expected="a setting's value", got=got)


def _is_about(key: str, place: Sequence[int | str]) -> bool:
    """Return whether the place of an error is that of a setting, or within it."""
    return f"{'.'.join(map(str, place))}.".startswith(f"{key}.")


class Trial(FrozenModel):
    """One finished trial.

    Attributes:
        number: From 0.
        parameters: Searched settings by key.
        state: ``"failed"`` where the settings do not work, with the reason.
        value: What it is compared by; None unless complete.
        values: That of each training seed.
        evaluations: (frame, value) of the first training seed, which pruning looks at.
        reason: Why it failed.
    """

    number: int
    parameters: dict[str, Any]
    state: State
    value: float | None = None
    values: tuple[float, ...] = ()
    evaluations: tuple[tuple[int, float], ...] = ()
    reason: str = ""


class _PrunedError(Exception):
    """A trial is behind the others."""


class TrialRunner(NotingRunner):
    """Trains the trial whose number is the key, in any process: built from plain values."""

    def __init__(
        self,
        config: dict[str, Any],
        out: Path,
        parameters: Mapping[int, Mapping[str, Any]],
        earlier: Sequence[Mapping[str, Any]],
        task: TaskSpec,
        modules: tuple[str, ...],
    ) -> None:
        adopt(task, modules)
        self._config = SweepConfig.model_validate(config)
        self._out, self._parameters = out, parameters
        self._earlier = [Trial.model_validate(told) for told in earlier]

    def __call__(self, key: str, /) -> bytes:
        """Train to the end, or until it is pruned; return what a `Trial` holds, as JSON.

        A trial fails by settings that do not fit together and by figures that are not finite; what
        else goes wrong may be wrong with all, so that nothing is kept of it.

        Raises:
            CadenzaError: As `run_training`.
        """
        try:
            config = self._config.configuration(self._parameters[int(key)])
        except ValidationError as error:
            return json.dumps({"state": "failed", "reason": error.errors()[0]["msg"]}).encode()
        trial = study_of(self._config, self._earlier).ask()
        points: list[tuple[int, float]] = []
        values: list[float] = []

        def watch(records: Sequence[EvaluationRecord]) -> None:
            if values:
                return  # of a further training seed
            for each in records[len(points) :]:
                points.append((each.frame, self._value(each)))
                trial.report(points[-1][1], each.frame)
            is_last = points[-1][0] == config.total_iterations * config.env.num_envs
            if not is_last and trial.should_prune():
                raise _PrunedError

        state: State = "complete"
        try:
            for seed in self._config.seeds:
                values.append(self._train(key, config, seed, len(values), watch))
        except _PrunedError:
            state = "pruned"
        except (NonFiniteError, FloatingPointError, OverflowError) as error:
            return json.dumps({"state": "failed", "reason": str(error)}).encode()
        told = {"state": state, "values": values, "evaluations": points}
        return json.dumps(told | {"value": fmean(values) if values else None}).encode()

    def _train(
        self, key: str, config: EgoAHTConfig, seed: int, before: int, watch: EvaluationWatch
    ) -> float:
        """Train with one seed, ``before`` others being done, and return its last value."""
        total = config.total_frames * len(self._config.seeds)

        def tell(done: int, _: int, last: float | None) -> None:
            told = "" if last is None else f", return {last:.1f}"
            self.note(Note(key, before * config.total_frames + done, total, told))

        config = seed_config(config, seed, work_of(self._out, int(key)))
        result = run_training(
            config,
            resume=True,
            progress=tell,
            evaluator=HeldOutEvaluator(config, self._config.judges),
            watch=watch,
        )
        records = result.curve.evaluations
        watch(records)  # a training that had ended before a kill told nobody
        return self._value(records[-1])

    def _value(self, record: EvaluationRecord) -> float:
        value = record.results[self._config.objective]
        if not math.isfinite(value):
            refuse(NonFiniteError, self._config.objective, expected="a number", got=value)
        return value


def study_of(config: SweepConfig, trials: Sequence[Trial]) -> Any:
    """Return Optuna's study of finished trials, in memory.

    Raises:
        MissingExtraError: Optuna is not installed.
    """
    optuna = load_extra("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    median = config.pruner == "median"
    study = optuna.create_study(
        direction="maximize",
        pruner=optuna.pruners.MedianPruner() if median else optuna.pruners.NopPruner(),
    )
    distributions = {key: values.distribution(optuna) for key, values in config.space.items()}
    states = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    for trial in trials:
        coded = {
            key: values.choices.index(trial.parameters[key])
            if values.choices
            else trial.parameters[key]
            for key, values in config.space.items()
        }
        study.add_trial(
            optuna.trial.create_trial(
                state=getattr(optuna.trial.TrialState, states[trial.state]),
                value=trial.value,
                params=coded,
                distributions=distributions,
                intermediate_values=dict(trial.evaluations),
            )
        )
    return study


def proposed(
    config: SweepConfig, first: int, earlier: Sequence[Trial]
) -> dict[int, dict[str, Any]]:
    """Return the settings of the batch that begins with trial ``first``, by number."""
    optuna, study = load_extra("optuna"), study_of(config, earlier)
    samplers = optuna.samplers
    distributions = {key: values.distribution(optuna) for key, values in config.space.items()}
    stream = derive_substream("sweep.sampler", root_seed=config.seed)
    batch: dict[int, dict[str, Any]] = {}
    for number in range(first, first + config.batch):
        kind = samplers.TPESampler if config.sampler == "tpe" else samplers.RandomSampler
        study.sampler = kind(seed=stream.child(number).integer_seed())
        drawn = study.ask(distributions).params
        batch[number] = {
            key: values.choices[drawn[key]] if values.choices else drawn[key]
            for key, values in config.space.items()
        }
    return batch


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A folder of trials: what was searched, and what is finished."""

    out: Path
    config: SweepConfig
    trials: tuple[Trial, ...]

    @cached_property
    def best(self) -> Trial:
        """The trial with the highest value, the first of several.

        Raises:
            NotReadyError: None is complete.
        """
        complete = [trial for trial in self.trials if trial.value is not None]
        if not complete:
            reasons = [trial.reason for trial in self.trials if trial.reason]
            refuse(
                NotReadyError,
                f"{self.out}",
                expected="a trial that went to its end",
                got=f"{len(self.trials)} that did not ({(*reasons, 'none failed')[0]})",
                do="narrow the ranges, or ask for more trials",
            )
        return max(complete, key=lambda trial: (trial.value, -trial.number))

    def best_yaml(self) -> str:
        """Return the best settings as a file for `cadenza train`."""
        best = self.best
        config = self.config.plain(best.parameters)
        settings = config.model_dump(
            mode="json",
            exclude_defaults=True,
            exclude={"artifacts_root", "log_dir", "wandb", "tensorboard"},
        )
        head = (
            f"# Trial {best.number} of {len(self.trials)} of a sweep: {self.config.objective} "
            f"{best.value:.4g} on validation seeds.\n# Train it with fresh seeds, and judge it "
            "beside partners that neither it nor the sweep met.\n"
        )
        settings = {"algo": config.algo, "seed": config.seed, **settings}
        return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def read_sweep(out: Path) -> Sweep:
    """Return the sweep in a folder.

    Raises:
        IntegrityError: A file of it is missing or was changed.
    """
    told = read_sealed_json(out / REQUEST_NAME, kind=_REQUEST_KIND)
    trials = [
        Trial.model_validate(read_sealed_json(path, kind=_TRIAL_KIND)["trial"])
        for path in sorted((out / _TRIALS).glob("*.json"))
    ]
    config = SweepConfig.model_validate(told["config"])
    return Sweep(out=out, config=config, trials=tuple(sorted(trials, key=lambda t: t.number)))


def work_of(out: Path, number: int) -> Path:
    """Return where the trainings of an unfinished trial are."""
    return out / _WORK / f"{number:05d}"


@dataclass(frozen=True, kw_only=True)
class SweepRunner:
    """Where and by what means trials are trained.

    Attributes:
        out: Output folder; on Ray all nodes must see it.
        workers: Processes; None for one per core, or as many as the cluster has room for.
        cluster: Ray cluster, which reports whole trials only; None for this machine.
        progress: Called with ``"sweep"``, frames done, frames in all, and how the search stands.
    """

    out: Path
    workers: int | None = None
    cluster: RayCluster | None = None
    progress: StageReport | None = None

    @ends_on_signals
    def run(self, config: SweepConfig, trials: int, *, mode: OutputMode = "new") -> Sweep:
        """Finish ``trials`` trials in all, and write the best settings.

        Raises:
            MissingExtraError: Optuna is not installed.
            ConfigurationError: A setting does not fit, or the folder holds another sweep.
            NotReadyError: No trial went to its end.
            CadenzaError: A trial could not be trained for want of something; all else is kept.
        """
        load_extra("optuna")
        config.require_sound()
        preload("torch._dynamo", "optuna")  # else the workers of every batch import them anew
        with open_output_folder(self.out, mode=mode):
            self._claim(config)
            done = {trial.number: trial for trial in read_sweep(self.out).trials}
            for first in range(0, trials, config.batch):
                earlier = [done[number] for number in range(first)]
                batch = proposed(config, first, earlier)
                wanted = {n: p for n, p in batch.items() if n < trials and n not in done}
                if wanted:
                    self._train(config, wanted, earlier, done, trials)
            rmtree(self.out / _WORK, ignore_errors=True)
            sweep = read_sweep(self.out)
            atomic_write_text(self.out / BEST_NAME, sweep.best_yaml())
        return sweep

    def _claim(self, config: SweepConfig) -> None:
        """Store what is searched in the folder, or raise if something else is."""
        path = self.out / REQUEST_NAME
        names = [partner.class_name for partner in (*config.training.trained_with, *config.judges)]
        asked = {
            "config": config.model_dump(mode="json"),
            "code_sha256": code_digest(config.task, dict.fromkeys(names)),
            "optuna": load_extra("optuna").__version__,  # which proposes
        }
        if not path.exists():
            write_sealed_json(path, asked, kind=_REQUEST_KIND)
            return
        stored = read_sealed_json(path, kind=_REQUEST_KIND)
        if {key: stored.get(key) for key in asked} != asked:
            refuse(
                ConfigurationError,
                f"{self.out}",
                expected="the sweep of this folder",
                got="another one (other settings, ranges or code, or another Optuna)",
                do="choose another --out, or start over with --overwrite",
            )

    def _train(
        self,
        config: SweepConfig,
        wanted: Mapping[int, Mapping[str, Any]],
        earlier: Sequence[Trial],
        done: dict[int, Trial],
        trials: int,
    ) -> None:
        """Train trials of one batch and keep each as soon as it is finished."""
        frames = config.training.total_frames * len(config.seeds)
        shares = dict.fromkeys(map(str, wanted), 0.0)
        finished = len(done)

        def store(key: str, data: bytes) -> None:
            number = int(key)
            trial = Trial(number=number, parameters=dict(wanted[number]), **json.loads(data))
            path = self.out / _TRIALS / f"{number:05d}.json"
            write_sealed_json(path, {"trial": trial.model_dump(mode="json")}, kind=_TRIAL_KIND)
            done[number] = trial
            rmtree(work_of(self.out, number), ignore_errors=True)

        def report(last: str) -> None:
            if self.progress is not None:
                share = finished + sum(shares.values())
                self.progress("sweep", round(share * frames), trials * frames, last + _so_far(done))

        def listen(note: Note) -> None:
            shares[note.key] = note.done / note.total
            report(f"trial {note.key}{note.detail}")

        def end(_: int, __: int, label: str) -> None:
            shares[label.rpartition(" ")[2]] = 1.0
            report(f"{label} is done")

        factory = partial(
            TrialRunner,
            config=config.model_dump(mode="json"),
            out=self.out.resolve(),
            parameters=wanted,
            earlier=[trial.model_dump(mode="json") for trial in earlier],
            task=config.task,
            modules=outside_modules(p.class_name for p in config.training.trained_with),
        )
        jobs = [Job(key=str(number), label=f"trial {number}") for number in wanted]
        common: dict[str, Any] = {
            "failure_policy": "best_effort",
            "progress": end,
            "store": store,
        }
        if self.cluster is not None:
            failures = run_jobs_on_ray(
                jobs, factory, cluster=self.cluster, actors=self.workers, **common
            )
        else:
            workers = self.workers or default_workers()
            failures = run_jobs(jobs, factory, workers=workers, notes=listen, **common)
        for failure in failures:
            raise failure.as_exception()


def _so_far(done: Mapping[int, Trial]) -> str:
    """Return how the search stands."""
    values = [trial.value for trial in done.values() if trial.value is not None]
    best = f", best {max(values):.3g}" if values else ""
    pruned = sum(trial.state == "pruned" for trial in done.values())
    return best + (f", {pruned} pruned" if pruned else "")
