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
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import Any, Final, Literal, TypeAlias, cast

import yaml
from pydantic import Field, ValidationError, field_validator

from cadenza.aht.config import EgoAHTConfig, PartnerConfig
from cadenza.aht.types import EvaluationRecord
from cadenza.benchmark.builders import code_digest, require_player
from cadenza.benchmark.executor import Job, Note, NotingRunner
from cadenza.benchmark.output_folder import OutputMode, claim, open_output_folder
from cadenza.benchmark.populations import refuse_held_out
from cadenza.benchmark.ray_executor import RayCluster, dispatch
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
#: Optuna's names of how trials end.
_STATES: Final = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
Sampler: TypeAlias = Literal["tpe", "random"]
Pruner: TypeAlias = Literal["median", "none"]


#: Numbers between two ends, as a word of the command line or in a file.
_ENDS: Final = re.compile(r"(?P<log>log:)?(?P<low>.*?)\.\.(?P<high>.*)")


class Range(FrozenModel):
    """What one setting may be: numbers from ``low`` to ``high``, or one of ``choices``.

    Whole numbers where both ends are; ``log`` draws the logarithm.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def distribution(self) -> Any:
        """It as Optuna's distribution; choices by index, for they may be lists."""
        optuna = load_extra("optuna.distributions")
        if self.choices:
            return optuna.CategoricalDistribution(tuple(range(len(self.choices))))
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        kind = optuna.IntDistribution if whole else optuna.FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def decoded(self, drawn: Any) -> Any:
        """Return the setting for what Optuna drew."""
        return self.choices[drawn] if self.choices else drawn

    def coded(self, setting: Any) -> Any:
        """Return the inverse of `decoded`."""
        return self.choices.index(setting) if self.choices else setting

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
    text = value.strip() if isinstance(value, str) else ""
    if (ends := _ENDS.fullmatch(text)) is not None:
        log = ends["log"] is not None
        low, high = (parse_yaml_value(key, ends[name]) for name in ("low", "high"))
        numbers = all(isinstance(end, int | float) and type(end) is not bool for end in (low, high))
        if not numbers or not low < high or (log and not low > 0):
            advice = "LOW..HIGH" if not log else "log:LOW..HIGH with 0 < LOW"
            refuse(ConfigurationError, key, expected=f"{advice}, LOW below HIGH", got=text)
        return Range(low=low, high=high, log=log)
    choices: Any = parse_yaml_value(key, f"[{text}]") if "," in text else [text]
    return Range(choices=tuple(choices)) if len(choices) > 1 else None


def split_ranges(words: Sequence[str]) -> tuple[list[str], dict[str, Range]]:
    """Return the settings among ``KEY=VALUE`` words, and the ranges by key."""
    pairs = [(word, *word.lstrip("+").partition("=")) for word in words]
    ranges = {key: parse_range(key, text) for _, key, _, text in pairs}
    settings = [word for word, key, *_ in pairs if ranges[key] is None]
    return settings, {key: found for key, found in ranges.items() if found is not None}


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
        elif (parsed := parse_range(key, value)) is not None:
            found[key] = parsed
        else:
            ranges = "LOW..HIGH, log:LOW..HIGH or a list of choices"
            refuse(ConfigurationError, f"sweep.{key}", expected=ranges, got=repr(value))
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

    @property
    def partners(self) -> tuple[PartnerConfig, ...]:
        """Those of the training, and the judges."""
        return (*self.training.trained_with, *self.judges)

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
        refuse_held_out(self.partners)
        for partner in self.partners:
            require_player(self.task, partner.class_name)
        for key, values in self.space.items():
            if key in ("seed", "artifacts_root", "log_dir"):
                refuse(ConfigurationError, key, expected="settings of the learner", got=key)
            for value in values.choices or (values.low, values.high):
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
    state: Literal["complete", "pruned", "failed"]
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
        self._earlier = [Trial.model_validate(trial) for trial in earlier]

    def __call__(self, key: str, /) -> bytes:
        """Train to the end, or until it is pruned; return the `Trial` as JSON.

        A trial fails by settings that do not fit together and by figures that are not finite; what
        else goes wrong may be wrong with all, so that nothing is kept of it.

        Raises:
            CadenzaError: As `run_training`.
        """
        parameters = dict(self._parameters[int(key)])
        try:
            config = self._config.configuration(parameters)
        except ValidationError as error:
            outcome: dict[str, Any] = {"state": "failed", "reason": error.errors()[0]["msg"]}
        else:
            outcome = self._train(key, config)
        return Trial(number=int(key), parameters=parameters, **outcome).model_dump_json().encode()

    def _train(self, key: str, config: EgoAHTConfig) -> dict[str, Any]:
        """Train with each seed in turn and return how it went; the first one may be pruned."""
        optuna_trial = study_of(self._config, self._earlier).ask()
        values, evaluations = list[float](), list[tuple[int, float]]()
        seeds, end = self._config.seeds, config.total_iterations * config.env.num_envs

        def watch(records: Sequence[EvaluationRecord]) -> None:
            if values:
                return  # of a further training seed
            for each in records[len(evaluations) :]:
                evaluations.append((each.frame, self._value(each)))
                optuna_trial.report(evaluations[-1][1], each.frame)
            if evaluations[-1][0] != end and optuna_trial.should_prune():
                raise _PrunedError

        def progress(done: int, _: int, last: float | None) -> None:
            detail = "" if last is None else f": return {last:.1f}"
            frames = config.total_frames  # of one seed
            self.note(Note(key, len(values) * frames + done, len(seeds) * frames, detail))

        try:
            for seed in seeds:
                own = seed_config(config, seed, work_of(self._out, int(key)))
                evaluator = HeldOutEvaluator(own, self._config.judges)
                result = run_training(
                    own, resume=True, progress=progress, evaluator=evaluator, watch=watch
                )
                watch(result.curve.evaluations)  # one that had ended before a kill told nobody
                values.append(self._value(result.curve.evaluations[-1]))
        except _PrunedError:
            return {"state": "pruned", "evaluations": evaluations}
        except (NonFiniteError, FloatingPointError, OverflowError) as error:
            return {"state": "failed", "reason": str(error)}
        complete = {"state": "complete", "value": fmean(values), "values": values}
        return complete | {"evaluations": evaluations}

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
    pruners = {"median": optuna.pruners.MedianPruner, "none": optuna.pruners.NopPruner}
    study = optuna.create_study(direction="maximize", pruner=pruners[config.pruner]())
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[_STATES[trial.state]],
                value=trial.value,
                params={key: x.coded(trial.parameters[key]) for key, x in config.space.items()},
                distributions={key: x.distribution for key, x in config.space.items()},
                intermediate_values=dict(trial.evaluations),
            )
        )
    return study


def proposed(
    config: SweepConfig, first: int, earlier: Sequence[Trial]
) -> dict[int, dict[str, Any]]:
    """Return the settings of the batch that begins with trial ``first``, by number."""
    study, samplers = study_of(config, earlier), load_extra("optuna.samplers")
    kind = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}[config.sampler]
    distributions = {key: x.distribution for key, x in config.space.items()}
    stream = derive_substream("sweep.sampler", root_seed=config.seed)
    batch: dict[int, dict[str, Any]] = {}
    for number in range(first, first + config.batch):
        study.sampler = kind(seed=stream.child(number).integer_seed())
        drawn = study.ask(distributions).params
        batch[number] = {key: x.decoded(drawn[key]) for key, x in config.space.items()}
    return batch


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A folder of trials: what was searched, and what is finished."""

    out: Path
    config: SweepConfig
    trials: tuple[Trial, ...]

    @property
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
    request = read_sealed_json(out / REQUEST_NAME, kind=_REQUEST_KIND)
    trials = [
        Trial.model_validate(read_sealed_json(path, kind=_TRIAL_KIND)["trial"])
        for path in sorted((out / _TRIALS).glob("*.json"))
    ]
    config = SweepConfig.model_validate(request["config"])
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
            names = dict.fromkeys(partner.class_name for partner in config.partners)
            asked = {
                "config": config.model_dump(mode="json"),
                "code_sha256": code_digest(config.task, names),
                "optuna": load_extra("optuna").__version__,  # which proposes
            }
            claim(self.out / REQUEST_NAME, asked, kind=_REQUEST_KIND)
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
        before = len(done) * frames

        def store(key: str, data: bytes) -> None:
            trial = done[int(key)] = Trial.model_validate_json(data)
            path = self.out / _TRIALS / f"{trial.number:05d}.json"
            write_sealed_json(path, {"trial": trial.model_dump(mode="json")}, kind=_TRIAL_KIND)
            rmtree(work_of(self.out, trial.number), ignore_errors=True)

        def report(work: int, _: int, last: str) -> None:
            if self.progress is not None:
                self.progress("sweep", before + work, trials * frames, last + _so_far(done))

        factory = partial(
            TrialRunner,
            config=config.model_dump(mode="json"),
            out=self.out.resolve(),
            parameters=wanted,
            earlier=[trial.model_dump(mode="json") for trial in earlier],
            task=config.task,
            modules=outside_modules(partner.class_name for partner in config.partners),
        )
        dispatch(
            [Job(key=str(number), label=f"trial {number}") for number in wanted],
            factory,
            work=frames,
            workers=self.workers,
            cluster=self.cluster,
            report=report,
            store=store,
        )


def _so_far(done: Mapping[int, Trial]) -> str:
    """Return how the search stands."""
    values = [trial.value for trial in done.values() if trial.value is not None]
    best = f", best {max(values):.3g}" if values else ""
    pruned = sum(trial.state == "pruned" for trial in done.values())
    return best + (f", {pruned} pruned" if pruned else "")
