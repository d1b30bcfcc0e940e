"""The whole idea in one call: train, guard, evaluate with strangers, report.

An ego is trained on the crossing task beside one partner with the safety filter on, and evaluated
beside every built-in partner, with the filter and without, from the same starts.

Output:   ``training/`` (checkpoints, log), ``evaluation/`` (plan, cells, bundle), ``report.html``,
          and, where the filter ran, the bundle's ``three_tables.json`` and ``three_tables.md``.
Resume:   the same call on the same folder goes on after a kill and repeats nothing. Results of
          other code or settings are moved next to the folder first, never mixed or deleted.
"""

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from cadenza.aht.config import EgoAHTConfig, config_fingerprint, load_config
from cadenza.aht.types import TrainingResult
from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.check_rows import CheckResult, all_ok
from cadenza.benchmark.evaluation_config import (
    ConditionChoice,
    EvaluationConfig,
    PartnerChoice,
    PolicyChoice,
)
from cadenza.benchmark.evaluation_run import EvaluationOutcome, run_evaluation
from cadenza.benchmark.output_folder import open_output_folder, set_aside_other_run
from cadenza.benchmark.quickstart_report import QuickstartRun, build_view
from cadenza.benchmark.tasks import get_task
from cadenza.benchmark.training import run_training
from cadenza.benchmark.verify import verify_bundle_dir
from cadenza.core.checkpoints import LOCAL_URI_SCHEME
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.core.provenance import compute_run_metadata
from cadenza.core.shipped_configs import shipped_config, source_checkout
from cadenza.evaluation.bundle_schema import CellSummary
from cadenza.evaluation.report.render import write_report
from cadenza.evaluation.results import ResultBundle, load_run_archive
from cadenza.safety.reporting.files import JSON_NAME, MARKDOWN_NAME

_logger = logging.getLogger(__name__)

#: Configuration that is trained.
TRAINING_CONFIG: Final = "train/crossing.yaml"
#: Name of the trained policy in the results.
POLICY_NAME: Final = "ego"
FILTER_ON: Final = "filter_on"
FILTER_OFF: Final = "filter_off"
#: Evaluation seeds, apart from the seeds people train with.
EVALUATION_SEEDS: Final = tuple(range(100, 110))
#: Episodes per seed, partner and condition: 200 per partner and condition.
EPISODES_PER_SEED: Final = 20
#: Where results go does not change them.
_SINKS: Final = {"artifacts_root", "log_dir", "wandb", "tensorboard"}

#: Called with (stage, work done, work in all, what was last seen); the stages are ``"training"``
#: (frames), ``"evaluation"`` (cells) and ``"report"`` (steps).
QuickstartProgress: TypeAlias = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartResult:
    """What a quickstart produced.

    Attributes:
        report: The HTML report.
        bundle: Bundle folder.
        checkpoint: The trained policy.
        cells: Summary per condition and partner.
        partners: Partners in display order, as (name, seen in training, leaves the ego a way).
        checks: Verification of the bundle.
        n_episodes: Evaluation episodes.
    """

    report: Path
    bundle: Path
    checkpoint: Path
    cells: Sequence[CellSummary]
    partners: Sequence[tuple[str, bool, bool]]
    checks: Sequence[CheckResult]
    n_episodes: int

    @property
    def verified(self) -> bool:
        """Whether every check of the bundle holds, as in `cadenza eval verify`."""
        return all_ok(self.checks)

    def cell(self, condition: str, partner: str) -> CellSummary:
        """Return the summary of one condition with one partner."""
        return next(c for c in self.cells if (c.condition, c.partner) == (condition, partner))

    def success_with_seen(self) -> float:
        """Return the filtered success rate averaged over partners seen in training."""
        return self._mean_success([name for name, seen, _ in self.partners if seen])

    def success_with_unseen(self) -> float:
        """Return the filtered success rate averaged over unseen partners that leave a way."""
        return self._mean_success([name for name, seen, way in self.partners if way and not seen])

    def contacts(self, condition: str) -> int:
        """Return the number of episodes of ``condition`` that ended in contact."""
        rates = [c.contact for c in self.cells if c.condition == condition]
        return sum(round((r.value or 0.0) * r.n) for r in rates if r is not None)

    def _mean_success(self, partners: Sequence[str]) -> float:
        rates = [self.cell(FILTER_ON, name).success.value or 0.0 for name in partners]
        return sum(rates) / len(rates)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return column headings and one row of text per partner, for a terminal.

        ``met`` says whether the ego trained with the partner, ``way`` whether the partner leaves
        it one; the figures are success rates with their intervals.
        """
        columns = (
            "partner",
            "met",
            "way",
            "with filter",
            "contacts",
            "closest",
            "without",
            "contacts",
        )
        rows = [
            (
                name,
                "yes" if seen else "no",
                "yes" if way else "no",
                *_figures(self.cell(FILTER_ON, name)),
                *_figures(self.cell(FILTER_OFF, name))[:2],
            )
            for name, seen, way in self.partners
        ]
        return columns, rows


def run_quickstart(
    *,
    out: Path,
    seed: int = 0,
    workers: int | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    episodes_per_seed: int = EPISODES_PER_SEED,
    repo_root: Path | None = None,
    progress: QuickstartProgress | None = None,
) -> QuickstartResult:
    """Train, evaluate, verify and report; go on where an earlier call in ``out`` stopped.

    Args:
        out: Output folder.
        seed: Training seed.
        workers: Evaluation processes; by default one per core.
        overwrite: Delete an earlier run in ``out`` first.
        overrides: Hydra overrides of the training configuration.
        episodes_per_seed: Episodes per evaluation seed, partner and condition.
        repo_root: Source tree for the provenance; by default this package's own checkout.
        progress: Told about progress.

    Raises:
        ConfigurationError: ``out`` holds something else, or an override does not fit.
        CadenzaError: Training or evaluation failed; what was finished is kept.
        StorageError: The file system refused; what was finished is kept.
    """
    report = progress or _ignore
    with open_output_folder(out, mode="overwrite" if overwrite else "resume"):
        config = training_config(out, seed, overrides)
        aside = set_aside_other_run(out, _identity(config, episodes_per_seed, repo_root))
        if aside is not None:
            _logger.warning("An earlier run with other code or settings was moved to %s.", aside)
        training = run_training(
            config,
            repo_root=repo_root,
            resume=True,
            progress=lambda done, total, last: report(
                "training", done, total, "" if last is None else f"return {last:.1f}"
            ),
        )
        evaluation = run_evaluation(
            _evaluation_config(config, training, episodes_per_seed),
            out=out / "evaluation",
            workers=workers,
            resume=True,
            repo_root=repo_root,
            repro_command=_repro_command(seed, overrides, episodes_per_seed),
            config_sha256=_config_digest(config),
            progress=lambda done, total, last: report("evaluation", done, total, last),
        )
        report("report", 0, 1, "")
        result = _finish(out, config, training, evaluation)
        report("report", 1, 1, "")
    return result


def _finish(
    out: Path, config: EgoAHTConfig, training: TrainingResult, evaluation: EvaluationOutcome
) -> QuickstartResult:
    """Verify the bundle, write the report and return everything."""
    bundle_dir = evaluation.bundles[POLICY_NAME]
    checks = verify_bundle_dir(bundle_dir, repo_path=source_checkout())
    bundle = load_run_archive(bundle_dir / "bundle.json")
    assert isinstance(bundle, ResultBundle), "written as one above"  # noqa: S101
    run = QuickstartRun(
        config=config,
        curve=training.curve,
        evaluation=evaluation,
        policy=POLICY_NAME,
        bundle=bundle,
        checks=checks,
        folder=out / "evaluation",
    )
    _copy_safety_tables(bundle_dir, out)
    return QuickstartResult(
        report=write_report(build_view(run), out / "report.html"),
        bundle=bundle_dir,
        checkpoint=training.curve.checkpoint_paths[-1],
        cells=bundle.summary.cells,
        partners=run.partners,
        checks=checks,
        n_episodes=bundle.summary.n_episodes,
    )


def _copy_safety_tables(bundle: Path, out: Path) -> None:
    """Put the bundle's safety tables beside the report; none if the filter never ran."""
    for name in (MARKDOWN_NAME, JSON_NAME):
        if (bundle / name).is_file():
            atomic_write_bytes(out / name, (bundle / name).read_bytes())
        else:
            (out / name).unlink(missing_ok=True)  # of an earlier call with the filter


def training_config(out: Path, seed: int, overrides: Sequence[str]) -> EgoAHTConfig:
    """Return what a quickstart in ``out`` trains.

    Raises:
        ConfigurationError: An override is malformed, or names a folder that ``out`` determines.
        hydra.errors.HydraException: An override does not fit the shipped configuration.
        pydantic.ValidationError: A value is unknown, out of range or without effect.
    """
    for override in overrides:
        if override.lstrip("+~").partition("=")[0] in {"artifacts_root", "log_dir"}:
            raise ConfigurationError(
                f"override {override!r}: expected everything to go to the output folder {out}, "
                "got another one; choose it with --out."
            )
    folder = out.resolve() / "training"
    config = load_config(
        config_path=shipped_config(TRAINING_CONFIG), overrides=[f"seed={seed}", *overrides]
    )
    return config.model_copy(update={"artifacts_root": folder, "log_dir": folder / "logs"})


def _evaluation_config(
    config: EgoAHTConfig, training: TrainingResult, episodes_per_seed: int
) -> EvaluationConfig:
    """Return the evaluation of the last checkpoint beside every partner of the task."""
    checkpoint = training.curve.checkpoint_paths[-1].resolve()
    address = checkpoint.relative_to(config.artifacts_root.resolve()).as_posix()
    return EvaluationConfig(
        task=config.env.task,
        episode_length=config.env.episode_length,
        agent_uids=config.env.agent_uids,
        options=config.env.options,
        policies=(PolicyChoice(name=POLICY_NAME, source=f"{LOCAL_URI_SCHEME}{address}"),),
        partners=_partners(config),
        conditions=(
            ConditionChoice(name=FILTER_ON, safety=config.safety),
            ConditionChoice(
                name=FILTER_OFF, safety=config.safety.model_copy(update={"enabled": False})
            ),
        ),
        seeds=EVALUATION_SEEDS,
        episodes_per_seed=episodes_per_seed,
        artifacts_root=config.artifacts_root,
    )


def _repro_command(seed: int, overrides: Sequence[str], episodes_per_seed: int) -> str:
    """Return the command line that gives the same bundle, wherever its output goes."""
    words = ["cadenza", "quickstart", *overrides, "--seed", str(seed)]
    if episodes_per_seed != EPISODES_PER_SEED:
        words += ["--episodes", str(episodes_per_seed)]
    return shlex.join(words)


def _partners(config: EgoAHTConfig) -> tuple[PartnerChoice, ...]:
    """Return the partner of the training as it was, then the task's others as registered."""
    seen = config.partner
    others = [name for name in get_task(config.env.task).partners if name != seen.class_name]
    return (
        PartnerChoice(name=seen.class_name, seen=True, **seen.model_dump()),
        *(PartnerChoice(name=name, class_name=name) for name in others),
    )


def _identity(config: EgoAHTConfig, episodes_per_seed: int, repo_root: Path | None) -> str:
    """Return what must be equal for results in the folder to be gone on with."""
    context = compute_run_metadata(
        seed=config.seed,
        run_kind=config.algo,
        repo_root=repo_root,
        config_fingerprint=config_fingerprint(config),
    )
    parts = {
        "run_id": context.run_id,
        "source": code_digest(
            get_task(config.env.task), (partner.class_name for partner in _partners(config))
        ),
        "episodes_per_seed": episodes_per_seed,
    }
    return sha256_bytes(canonical_json(parts))


def _config_digest(config: EgoAHTConfig) -> str:
    """Return the SHA-256 of what the training computes, without where it goes."""
    return sha256_bytes(canonical_json(config.model_dump(mode="json", exclude=_SINKS)))


def _figures(cell: CellSummary) -> tuple[str, str, str]:
    """Return success with its interval, contacts, and the smallest distance, as text."""
    success, contact = cell.success, cell.contact
    rate = f"{success.value or 0.0:.1%}"
    if success.low is not None and success.high is not None:
        rate += f" [{100 * success.low:.0f}, {100 * success.high:.0f}]"
    contacts = "" if contact is None else f"{round((contact.value or 0.0) * contact.n)}/{contact.n}"
    closest = "" if cell.min_distance_m is None else f"{cell.min_distance_m:.3f} m"
    return rate, contacts, closest


def _ignore(stage: str, done: int, total: int, detail: str) -> None:
    """Take a report and do nothing."""
