"""Several training seeds as one result: each is trained, and all are judged from the same starts.

Output:   ``training/seed<N>/`` (a run each, see `cadenza.aht.run`), ``policies/`` (the last policy
          of each, at an address that can be registered before there is one), ``evaluation/`` (one
          plan, a bundle per seed), ``report.html`` and ``result.json``.
Judged:   what each seed has learned last, without exploration, on the training's own task and
          options, beside every partner of the training and all others of the task.
Result:   training seeds are the clusters of every interval, so that training luck is in it.
Resume:   a run goes on from its newest state, a finished one and finished cells are not repeated.
          Seeds may be added (``request.json``), and another evaluation is moved aside first.
Workers:  processes of this machine, or actors of a Ray cluster whose nodes share the output folder.
          No byte depends on how many there are.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.types import RewardCurve, RunOutcome
from cadenza.benchmark.cells import ConditionEntry, PolicyChoice
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    EvaluationOutcome,
    PartnerChoice,
    make_plan,
    run_evaluation,
)
from cadenza.benchmark.executor import Job, Note, NotingRunner
from cadenza.benchmark.output_folder import (
    claim,
    open_output_folder,
    output_mode,
    set_aside_other_run,
)
from cadenza.benchmark.ray_executor import RayCluster, dispatch
from cadenza.benchmark.reporting import SealedRun, load_run, report_view
from cadenza.benchmark.tasks import TaskSpec, adopt, get_task
from cadenza.benchmark.training import run_training
from cadenza.core.checkpoints import LOCAL_URI_SCHEME
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_text,
    canonical_json,
    sha256_bytes,
)
from cadenza.core.progress import ProgressReport, StageReport
from cadenza.core.shipped_configs import source_checkout
from cadenza.core.signals import ends_on_signals
from cadenza.evaluation.report.render import render_json, render_report
from cadenza.evaluation.report.view import ReportView
from cadenza.learn.nn.portable import policy_path
from cadenza.partners.registry import outside_modules
from cadenza.partners.zoo_member import ZOO_MEMBER

#: Evaluation seeds, apart from the seeds people train with.
EVALUATION_SEEDS: Final = tuple(range(100, 110))
#: Episodes per evaluation seed, partner and condition: 200 per training seed.
EPISODES_PER_SEED: Final = 20
#: Seconds between two notes of a training.
_NOTE_EVERY_S: Final = 0.2
#: Settings of a training that each seed's folder decides, and where results go.
_OWN: Final = {"seed", "artifacts_root", "log_dir"}
_NOT_COMMON: Final = {*_OWN, "wandb", "tensorboard"}


class TrainedSeed(NamedTuple):
    """One training: its configuration, how it went, and what this call did for it."""

    config: EgoAHTConfig
    curve: RewardCurve
    outcome: RunOutcome

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint."""
        return self.curve.checkpoint_paths[-1]

    @property
    def policy(self) -> str:
        """Name of its policy, of method and seed."""
        return f"{self.config.algo}_seed{self.config.seed}"

    @property
    def address(self) -> str:
        """Where that lies below the output folder."""
        return f"policies/{self.policy}.policy.safetensors"


@dataclass(frozen=True, kw_only=True)
class JudgedSeeds:
    """Trainings that differ in their seed alone, and their evaluation: one result."""

    trained: tuple[TrainedSeed, ...]
    report: Path
    evaluation: EvaluationOutcome
    runs: tuple[SealedRun, ...]

    @cached_property
    def view(self) -> ReportView:
        """What a report shows of them."""
        return report_view(self.runs)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a command line names: ``5`` (0 to 4), ``0-4`` or ``3,7,9``.

    Raises:
        ConfigurationError: It names none, or one twice.
    """
    seeds: list[int] = []
    try:
        for part in [f"0-{int(text) - 1}"] if text.isdecimal() else text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = []
    twice = [seed for seed, times in Counter(seeds).items() if times > 1]
    if not seeds or twice:
        raise ConfigurationError(
            "--seeds: expected a number (5), a range (0-4, the smaller first) or a list (3,7,9), "
            f"got {f'{twice[0]} twice' if twice else repr(text)}."
        )
    return tuple(seeds)


def require_free_settings(overrides: Sequence[str], out: Path) -> None:
    """Raise if a setting would decide what each seed's folder in ``out`` does.

    Raises:
        ConfigurationError: One does.
    """
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0]
        if name in _OWN:
            raise ConfigurationError(
                f"{override} and --seeds contradict: expected no {name} for all seeds in "
                f"{out}, got one; choose seeds with --seeds, and the folder with --out."
            )


@dataclass(frozen=True, kw_only=True)
class SeedRunner:
    """Where and by what means seeds are trained and judged.

    Attributes:
        out: Output folder; on Ray all nodes must see it.
        workers: Processes; None for one per core, or as many as the cluster has room for.
        cluster: Ray cluster, which reports whole trainings only; None for this machine.
        repo_root: Source tree for the provenance; None for this package's own checkout.
        progress: Called in the stages ``"training"`` (frames of all seeds) and ``"evaluation"``.
    """

    out: Path
    workers: int | None = None
    cluster: RayCluster | None = None
    repo_root: Path | None = None
    progress: StageReport | None = None

    @ends_on_signals
    def run(
        self,
        config: EgoAHTConfig,
        seeds: Sequence[int],
        *,
        overrides: Sequence[str] = (),
        resume: bool = False,
        overwrite: bool = False,
        episodes_per_seed: int = EPISODES_PER_SEED,
        repro_command: str = "cadenza train",
    ) -> tuple[tuple[TrainedSeed, ...], JudgedSeeds | None]:
        """Train with every seed, judge all, and write report and result.

        Args:
            config: What all have in common; its seed and folders are replaced.
            seeds: Training seeds.
            overrides: Settings that ``config`` was read with; those that seeds decide are refused.
            resume: Continue an earlier call.
            overwrite: Delete what an earlier call left first.
            episodes_per_seed: Episodes per evaluation seed and partner; 0 judges nothing.
            repro_command: Command line that repeats it; no host paths, it is hashed.

        Raises:
            ConfigurationError: A setting or the folder does not fit.
            CadenzaError: A training or the evaluation failed; what was finished is kept.
        """
        require_free_settings(overrides, self.out)
        with open_output_folder(self.out, mode=output_mode(resume=resume, overwrite=overwrite)):
            asked = config.model_dump(mode="json", exclude=_NOT_COMMON) | {"seeds": sorted(seeds)}
            claim(self.out / "request.json", asked, kind="cadenza-seeds", growing="seeds")
            trained = self.train(config, seeds)
            if episodes_per_seed == 0:
                return trained, None
            evaluation = evaluation_of(trained, out=self.out, episodes_per_seed=episodes_per_seed)
            judged = self.judge(trained, evaluation, repro_command=repro_command)
            write_result(judged, judged.view)
        return trained, judged

    def train(self, config: EgoAHTConfig, seeds: Sequence[int]) -> tuple[TrainedSeed, ...]:
        """Train with every seed in the opened folder, on from where earlier calls stopped.

        Raises:
            CadenzaError: As `train_runs`.
        """
        configs = {f"seed {seed}": seed_config(config, seed, self.out) for seed in seeds}
        done = train_runs(
            configs,
            workers=self.workers,
            cluster=self.cluster,
            repo_root=self.repo_root,
            report=self.progress and partial(self.progress, "training"),
        )
        return tuple(self._read(configs[key], done[key]) for key in configs)

    def _read(self, config: EgoAHTConfig, done: dict[str, Any]) -> TrainedSeed:
        """Return a finished training, with its last policy at its address."""
        result = run_training(config, repo_root=self.repo_root, resume=True)
        assert result.outcome is not None  # noqa: S101 -- not built by hand
        trained = TrainedSeed(config, result.curve, replace(result.outcome, **done))
        if (file := policy_path(trained.checkpoint)).is_file():
            atomic_write_bytes(self.out / trained.address, file.read_bytes())
        return trained

    def judge(
        self, trained: Sequence[TrainedSeed], evaluation: EvaluationConfig, *, repro_command: str
    ) -> JudgedSeeds:
        """Evaluate all trainings in one plan and seal a bundle for each.

        Raises:
            CadenzaError: As `run_evaluation`.
        """
        folder = self.out / "evaluation"
        common = trained[0].config.model_dump(mode="json", exclude=_NOT_COMMON)
        with open_output_folder(folder, mode="resume"):
            set_aside_other_run(folder, make_plan(evaluation).digest)
        outcome = run_evaluation(
            evaluation,
            out=folder,
            workers=self.workers,
            cluster=self.cluster,
            resume=True,
            repo_root=self.repo_root,
            repro_command=repro_command,
            config_sha256=sha256_bytes(canonical_json(common)),
            progress=self.progress and partial(self.progress, "evaluation"),
        )
        return JudgedSeeds(
            trained=tuple(trained),
            report=self.out / "report.html",
            evaluation=outcome,
            runs=tuple(load_run(f, repo_path=source_checkout()) for f in outcome.bundles.values()),
        )


def write_result(judged: JudgedSeeds, view: ReportView) -> None:
    """Write the report of several seeds, for readers and for programs."""
    atomic_write_text(judged.report, render_report(view))
    atomic_write_text(judged.report.with_name("result.json"), render_json(view))


def seed_config(config: EgoAHTConfig, seed: int, out: Path) -> EgoAHTConfig:
    """Return the configuration of one seed: a run in a folder of its own."""
    folder = out.resolve() / "training" / f"seed{seed}"
    own = {"seed": seed, "artifacts_root": folder, "log_dir": folder / "logs"}
    return config.model_copy(update=own)


def train_runs(
    configs: Mapping[str, EgoAHTConfig],
    *,
    workers: int | None,
    cluster: RayCluster | None = None,
    repo_root: Path | None = None,
    report: ProgressReport | None = None,
) -> dict[str, dict[str, Any]]:
    """Train runs of one task side by side, each on from where it stands.

    Returns:
        What this call did for each: status and where it resumed, as of `RunOutcome`.

    Raises:
        CadenzaError: A training failed; the others went on to their end, and all is kept.
    """
    first = next(iter(configs.values()))
    met = (p for c in configs.values() for p in (*c.trained_with, *c.evaluation.validation))
    outcomes: dict[str, bytes] = {}
    dispatch(
        [Job(key=key, label=f"training {key}") for key in configs],
        partial(
            RunTrainer,
            configs={key: config.model_dump(mode="json") for key, config in configs.items()},
            repo_root=repo_root,
            task=get_task(first.env.task),
            modules=outside_modules(partner.class_name for partner in met),
        ),
        work=first.total_frames,
        workers=workers,
        cluster=cluster,
        report=report,
        store=outcomes.__setitem__,
    )
    return {key: json.loads(outcome) for key, outcome in outcomes.items()}


class RunTrainer(NotingRunner):
    """Trains the run that a key names, in any process: built from plain values."""

    def __init__(
        self,
        configs: Mapping[str, dict[str, Any]],
        repo_root: Path | None,
        task: TaskSpec,
        modules: tuple[str, ...],
    ) -> None:
        adopt(task, modules)
        self._configs, self._repo_root = configs, repo_root

    def __call__(self, key: str, /) -> bytes:
        """Train to the end, from wherever the run stands; return as JSON what was done.

        Raises:
            CadenzaError: As `run_training`.
        """
        due = 0.0

        def tell(done: int, total: int, last: float | None) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _NOTE_EVERY_S
                self.note(Note(key, done, total, "" if last is None else f": return {last:.1f}"))

        config = EgoAHTConfig.model_validate(self._configs[key])
        outcome = run_training(
            config, repo_root=self._repo_root, resume=True, progress=tell
        ).outcome
        assert outcome is not None  # noqa: S101 -- not built by hand
        return json.dumps({n: getattr(outcome, n) for n in ("status", "resumed_from")}).encode()


def evaluation_of(
    trained: Sequence[TrainedSeed],
    *,
    out: Path,
    episodes_per_seed: int = EPISODES_PER_SEED,
    conditions: Sequence[ConditionEntry] = (),
) -> EvaluationConfig:
    """Return the evaluation of what was trained, by the rules above; see `judgement`.

    Raises:
        ConfigurationError: The algorithm writes no policy files.
    """
    config = trained[0].config
    return judgement(
        config,
        conditions,
        options=config.env.options,
        policies=tuple(_policy(each, out) for each in trained),
        partners=partners_of(config),
        seeds=EVALUATION_SEEDS,
        episodes_per_seed=episodes_per_seed,
        artifacts_root=out.resolve(),
    )


def judgement(
    config: EgoAHTConfig, conditions: Sequence[ConditionEntry] = (), **own: Any
) -> EvaluationConfig:
    """Return an evaluation of a training's task, with fields of its ``own``.

    ``conditions`` are by default the one that was trained under, ``filter_on`` or ``filter_off``.
    """
    name = "filter_on" if config.safety.enabled else "filter_off"
    return EvaluationConfig(
        task=config.env.task,
        condition_id=config.env.condition_id,
        episode_length=config.env.episode_length,
        agent_uids=config.env.agent_uids,
        conditions=tuple(conditions) or (ConditionEntry(name=name, safety=config.safety),),
        **own,
    )


def _policy(trained: TrainedSeed, out: Path) -> PolicyChoice:
    """Return the choice of a training's last policy."""
    seed, method = trained.config.seed, trained.config.algo
    if not (out / trained.address).is_file():
        raise ConfigurationError(
            f"seed {seed}: expected an algorithm that writes policy files, got {method!r}; train "
            "it with --episodes 0."
        )
    source = LOCAL_URI_SCHEME + trained.address
    return PolicyChoice(name=trained.policy, source=source, method=method, training_seed=seed)


def partners_of(config: EgoAHTConfig) -> tuple[PartnerChoice, ...]:
    """Return the partners of a training as they were, then the task's others as registered.

    Classes of validation partners are left out: what chose a checkpoint does not test it.
    """
    seen = [partner.class_name for partner in config.trained_with]
    known = {*seen, *(partner.class_name for partner in config.evaluation.validation)}
    others = [name for name in get_task(config.env.task).partners if name not in known]
    chosen: list[PartnerChoice] = []
    for index, (name, partner) in enumerate(zip(seen, config.trained_with, strict=True)):
        facts = partner.model_dump()
        if name == ZOO_MEMBER:  # whose address a training takes relative to the current folder
            facts["extra"] = {"root": ".", **facts["extra"]}
        unique = f"{name}_{index}" if seen.count(name) > 1 else name
        chosen.append(PartnerChoice(name=unique, seen=not config.brings_partner, **facts))
    return (*chosen, *(PartnerChoice(name=name, class_name=name) for name in others))
