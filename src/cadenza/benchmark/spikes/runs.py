"""Play the spike of one axis: the rig with an ego that never acts, then the stage itself.

Output:   ``1a/`` and ``1b/``, ``2/`` or ``3/``, each the folder of an evaluation, then what
          `cadenza.benchmark.spikes.gate` makes of them: ``summary.md``, ``leaderboard.md`` and
          ``leaderboard.json``. Killed at any point, the same call with ``resume`` goes on.
Dry run:  ``<stage>/spike_run.json`` with made-up episodes, marked as such; no bundle.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cadenza.benchmark.bundle import SPIKE_NAME, SpikeLabel, spike_bytes
from cadenza.benchmark.cells import PolicyChoice
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    EvaluationOutcome,
    PartnerChoice,
    make_plan,
    run_evaluation,
    summary_settings,
)
from cadenza.benchmark.output_folder import OutputMode, open_output_folder
from cadenza.benchmark.registration import require_registered
from cadenza.benchmark.spike_axes import ESTIMATORS, Adapter, find_adapter, stage_of
from cadenza.core.errors import ConfigurationError, PreregistrationError
from cadenza.core.files import atomic_write_bytes
from cadenza.evaluation.prereg import LockedRegistration, PreregistrationSpec
from cadenza.evaluation.results import ConditionPair, EpisodeResult, SpikeRun, SubStage

#: Seeds and episodes of each seed and condition: ten clusters, for intervals of fewer are wide.
SEEDS: Final = tuple(range(10))
EPISODES_PER_SEED: Final = 20
#: The ego of stage 1a, which tries the rig and nothing else.
RIG_EGO: Final = PolicyChoice(name="zero", source="zero")
#: Of 20 made-up episodes per seed, so many succeed in the heterogeneous condition.
DRY_RUN_SUCCESSES: Final = 10
#: What stands for tag and blob of a dry run.
DRY_RUN: Final = "dry-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikePlan:
    """One axis as it will be played.

    Attributes:
        axis: One of the six.
        adapter: Task and conditions.
        stages: Stages in order, e.g. ``("1a", "2")``.
        egos: Policies of the last stage.
        seeds: Evaluation seeds, the clusters.
        episodes_per_seed: Episodes per seed and condition.
        artifacts_root: Folder that ``local://`` addresses are relative to.
        registration: What was registered, locked by its tag; None for a trial.
    """

    axis: str
    adapter: Adapter
    stages: tuple[SubStage, ...]
    egos: tuple[PolicyChoice, ...]
    seeds: tuple[int, ...] = SEEDS
    episodes_per_seed: int = EPISODES_PER_SEED
    artifacts_root: Path = Path()
    registration: LockedRegistration | None = None

    def config(self, stage: SubStage) -> EvaluationConfig:
        """Return the evaluation that ``stage`` is."""
        seen = PartnerChoice(name=self.adapter.partner, class_name=self.adapter.partner, seen=True)
        registered = None if self.registration is None else axis_spec(self.registration)
        return EvaluationConfig(
            task=self.adapter.task,
            policies=(RIG_EGO,) if stage == "1a" else self.egos,
            partners=(seen,),
            conditions=self.adapter.conditions,
            seeds=self.seeds,
            episodes_per_seed=self.episodes_per_seed,
            failure_policy="strict" if registered is None else registered.failure_policy,
            artifacts_root=self.artifacts_root,
        )

    def repro_command(self) -> str:
        """Return a command line that repeats the spike; no host paths, for it is hashed."""
        words = ["cadenza", "spike", "run", "--axis", self.axis, "--task", self.adapter.task]
        words += [] if len(self.stages) > 1 else ["--sub-stage", *self.stages]
        words += [word for ego in self.egos for word in ("--ego", f"{ego.name}={ego.source}")]
        words += ["--episodes", str(self.episodes_per_seed), "--out", f"runs/spike-{self.axis}"]
        if self.registration is not None:
            words += ["--prereg", self.registration.path]
        elif self.seeds == tuple(range(len(self.seeds))):
            words += ["--seeds", str(len(self.seeds))]
        return shlex.join(words)

    def label(self, stage: SubStage) -> SpikeLabel:
        """Return what ``stage`` is called in its bundles."""
        return SpikeLabel(axis=self.axis, sub_stage=stage, condition_pair=self.adapter.pair)


def plan_spike(
    axis: str,
    *,
    egos: Sequence[str],
    sub_stage: str | None = None,
    task: str | None = None,
    seeds: Sequence[int] | None = None,
    episodes_per_seed: int | None = None,
    artifacts_root: Path = Path(),
    registration: LockedRegistration | None = None,
) -> SpikePlan:
    """Return what will be played; a registration gives conditions, seeds and episodes.

    Args:
        axis: One of the six.
        egos: Policies, ``SOURCE`` or ``NAME=SOURCE``; see `cadenza.benchmark.policies`.
        sub_stage: ``"1a"`` alone, or the axis' own stage alone; None plays both.
        task: Task of the adapter; None takes the usual one.
        seeds: Evaluation seeds; None takes those registered, or ten.
        episodes_per_seed: Of each condition; None takes those registered, or twenty.
        artifacts_root: Folder that ``local://`` addresses are relative to.
        registration: Locked registration of this axis.

    Raises:
        ConfigurationError: There is no such axis, task or stage of it, or an ego is missing.
        PreregistrationError: The registration is of something else.
    """
    own = stage_of(axis) if find_adapter(axis) else None
    if sub_stage not in (None, "1a", own):
        raise ConfigurationError(
            f"axis {axis}: expected sub-stage 1a or {own}, got {sub_stage!r}; other axes have the "
            "others."
        )
    pair: ConditionPair | None = None
    if registration is not None:
        spec = axis_spec(registration)
        if spec.axis != axis:
            raise PreregistrationError(f"axis: {spec.axis} registered, {axis} asked for.")
        pair, seeds = spec.condition_pair, seeds or spec.seeds
        episodes_per_seed = episodes_per_seed or spec.episodes_per_seed
    stages: tuple[Any, ...] = ("1a", own) if sub_stage is None else (sub_stage,)
    if own in stages and not egos:
        raise ConfigurationError(
            f"axis {axis}: expected at least one --ego for stage {own}, got none."
        )
    return SpikePlan(
        axis=axis,
        adapter=find_adapter(axis, task=task, pair=pair),
        stages=stages,
        egos=tuple(map(_ego, egos)),
        seeds=tuple(seeds or SEEDS),
        episodes_per_seed=episodes_per_seed or EPISODES_PER_SEED,
        artifacts_root=artifacts_root,
        registration=registration,
    )


def axis_spec(registration: LockedRegistration) -> PreregistrationSpec:
    """Return the registered axis.

    Raises:
        PreregistrationError: The registration is none of an axis.
    """
    spec = registration.protocol
    if not isinstance(spec, PreregistrationSpec):
        raise PreregistrationError(
            f"{registration.path}: expected the registration of an axis, got a protocol in blocks; "
            "`cadenza prereg new AXIS` writes one."
        )
    return spec


def axis_registration(plan: SpikePlan, git_tag: str) -> PreregistrationSpec:
    """Return what registers the last stage of ``plan`` under ``git_tag``."""
    return PreregistrationSpec(
        axis=plan.axis,
        condition_pair=plan.adapter.pair,
        seeds=list(plan.seeds),
        episodes_per_seed=plan.episodes_per_seed,
        estimator=ESTIMATORS[0],
        git_tag=git_tag,
        notes=f"{plan.adapter.task}: {plan.adapter.varied}.",
    )


def run_spike(
    plan: SpikePlan, out: Path, *, mode: OutputMode = "new", dry_run: bool = False, **means: Any
) -> Mapping[SubStage, EvaluationOutcome]:
    """Play the stages of ``plan`` in ``out``; every refusal comes before the first episode.

    Args:
        plan: What `plan_spike` returned.
        out: Output folder.
        mode: Whether the folder must be new, is resumed, or begun anew.
        dry_run: Write made-up episodes in place of the last stage, and play nothing.
        **means: Further arguments of `run_evaluation`: workers, cluster, progress, ...

    Returns:
        The outcome of each stage; none for a dry run.

    Raises:
        MissingExtraError: The task's package is not installed.
        PreregistrationError: It is not what was registered.
        ConfigurationError: The folder holds something else, or a setting does not fit.
        CadenzaError: As `run_evaluation`.
    """
    plan.adapter.require()
    configs: dict[SubStage, EvaluationConfig] = {s: plan.config(s) for s in plan.stages}
    for config in configs.values():
        planned = make_plan(config)
        if plan.registration is not None:
            require_registered(plan.registration, planned, summary_settings(config))
    outcomes: dict[SubStage, EvaluationOutcome] = {}
    with open_output_folder(out, mode=mode):
        if dry_run:
            stage = plan.stages[-1]
            atomic_write_bytes(out / stage / SPIKE_NAME, spike_bytes(made_up_run(plan.axis, stage)))
            return outcomes
        for stage, config in configs.items():
            outcomes[stage] = run_evaluation(
                config,
                out=out / stage,
                resume=True,
                registration=plan.registration,
                spike=plan.label(stage),
                **means,
            )
    return outcomes


def made_up_run(axis: str, stage: SubStage) -> SpikeRun:
    """Return a run of invented episodes, marked as a dry run: it shows what the tables look like.

    The control always succeeds, the treatment in `DRY_RUN_SUCCESSES` of 20 episodes per seed.
    """
    pair = ConditionPair(homogeneous_id="dry_run_homo", heterogeneous_id="dry_run_hetero")
    episodes = [
        EpisodeResult(
            seed=seed,
            episode_idx=index,
            initial_state_seed=10_000 * seed + index,
            success=condition == pair.homogeneous_id or index < DRY_RUN_SUCCESSES,
            condition=condition,
            metadata={"policy": DRY_RUN},
        )
        for seed in range(5)
        for condition in (pair.homogeneous_id, pair.heterogeneous_id)
        for index in range(20)
    ]
    return SpikeRun(
        kind="dry_run",
        spike_id=f"{axis}-{stage}-{DRY_RUN}",
        prereg_sha=DRY_RUN,
        git_tag=DRY_RUN,
        axis=axis,
        sub_stage=stage,
        condition_pair=pair,
        seeds=list(range(5)),
        episode_results=episodes,
    )


def _ego(text: str) -> PolicyChoice:
    """Return the policy that ``SOURCE`` or ``NAME=SOURCE`` means."""
    name, equals, source = text.partition("=")
    if not equals:
        source = text
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", Path(text.partition("://")[2] or text).stem)
    return PolicyChoice(name=name, source=source)
