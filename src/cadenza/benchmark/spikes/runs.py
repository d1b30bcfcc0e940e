"""Play the spike of one axis: the rig with an ego that never acts, then the stage itself.

Output:   ``1a/``, then ``1b/``, ``2/`` or ``3/``: each the folder of an evaluation. Killed at any
          point, the same call with mode ``"resume"`` goes on.
Dry run:  ``<stage>/spike_run.json`` with made-up episodes, marked as such; no bundle.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cadenza.benchmark.bundle import SPIKE_NAME, spike_bytes
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
from cadenza.benchmark.spike_axes import find_adapter, stage_of
from cadenza.core.errors import ConfigurationError, PreregistrationError
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_bytes
from cadenza.evaluation.prereg import LockedRegistration, PreregistrationSpec
from cadenza.evaluation.results import ConditionPair, EpisodeResult, SpikeRun, SubStage

#: Seeds and episodes of each seed and condition: ten clusters, for intervals of fewer are wide.
SEEDS: Final = tuple(range(10))
EPISODES_PER_SEED: Final = 20
#: The ego of stage 1a, which tries the rig and nothing else.
RIG_EGO: Final = PolicyChoice(name="zero", source="zero")


def run_spike(
    axis: str,
    out: Path,
    *,
    egos: Sequence[str],
    sub_stage: str | None = None,
    task: str | None = None,
    seeds: Sequence[int] = (),
    episodes_per_seed: int | None = None,
    registration: LockedRegistration | None = None,
    mode: OutputMode = "new",
    dry_run: bool = False,
    **means: Any,
) -> list[EvaluationOutcome]:
    """Play the stages of one axis; every refusal comes before the first episode.

    Args:
        axis: One of the six.
        out: Output folder.
        egos: Policies, ``SOURCE`` or ``NAME=SOURCE``; addresses are relative to the current folder.
        sub_stage: ``"1a"`` alone, or the axis' own stage alone; None plays both.
        task: Task of the axis; None takes the usual one.
        seeds: Evaluation seeds; none take those registered, or ten.
        episodes_per_seed: Of each condition; None takes those registered, or twenty.
        registration: Registration of this axis, locked by its tag; None for a trial.
        mode: Whether the folder must be new, is resumed or emptied.
        dry_run: Write made-up episodes in place of the last stage, and play nothing.
        **means: Further arguments of `run_evaluation`: workers, cluster, progress, ...

    Returns:
        The outcome of each stage; none for a dry run.

    Raises:
        ConfigurationError: There is no such axis, task or stage of it, an ego is missing, or the
            folder holds something else.
        MissingExtraError: The task's package is not installed.
        PreregistrationError: It is not what was registered.
        CadenzaError: As `run_evaluation`.
    """
    spec = None if registration is None else registration.protocol
    if spec is not None and (not isinstance(spec, PreregistrationSpec) or spec.axis != axis):
        got = getattr(spec, "axis", "an evaluation")
        raise PreregistrationError(f"axis {axis}: expected its registration, got that of {got}.")
    adapter = find_adapter(axis, task=task, pair=spec and spec.condition_pair)
    own = stage_of(axis)
    known: dict[str | None, tuple[SubStage, ...]] = {None: ("1a", own), "1a": ("1a",), own: (own,)}
    stages = known.get(sub_stage, ())
    if not stages:
        raise ConfigurationError(f"axis {axis}: expected sub-stage 1a or {own}, got {sub_stage}.")
    if own in stages and not egos:
        raise ConfigurationError(f"axis {axis}, stage {own}: expected --ego POLICY, got none.")
    if adapter.package is not None:
        load_extra(adapter.package)
    config = EvaluationConfig(
        task=adapter.task,
        policies=tuple(map(_ego, egos)) or (RIG_EGO,),
        partners=(PartnerChoice(name=adapter.partner, class_name=adapter.partner, seen=True),),
        conditions=adapter.conditions,
        seeds=tuple(seeds or (spec.seeds if spec else SEEDS)),
        episodes_per_seed=episodes_per_seed
        or (spec.episodes_per_seed if spec else EPISODES_PER_SEED),
        failure_policy=spec.failure_policy if spec else "strict",
    )
    if len(config.seeds) < 2:
        raise ConfigurationError(f"axis {axis}: expected two seeds or more, got {config.seeds}.")
    rig = config.model_copy(update={"policies": (RIG_EGO,)})
    played: list[tuple[SubStage, EvaluationConfig]]
    played = [(stage, rig if stage == "1a" else config) for stage in stages]
    for _, each in played:
        plan = make_plan(each)
        if registration is not None:
            require_registered(registration, plan, summary_settings(each))
    with open_output_folder(out, mode=mode):
        if dry_run:
            run = made_up_run(axis, stages[-1], ego=config.policies[0].name)
            atomic_write_bytes(out / run.sub_stage / SPIKE_NAME, spike_bytes(run))
            return []
        return [
            run_evaluation(
                each,
                out=out / stage,
                resume=True,
                repro_command=_repro_command(axis, config, registration),
                registration=registration,
                spike=(axis, stage),
                **means,
            )
            for stage, each in played
        ]


def made_up_run(axis: str, stage: SubStage, *, ego: str = "dry-run") -> SpikeRun:
    """Return invented episodes, marked as a dry run, for those who build tools on archives.

    The control always succeeds, the treatment in 10 of 20 episodes per seed.
    """
    pair = ConditionPair(homogeneous_id="dry_run_homo", heterogeneous_id="dry_run_hetero")
    episodes = [
        EpisodeResult(
            seed=seed,
            episode_idx=index,
            initial_state_seed=10_000 * seed + index,
            success=condition == pair.homogeneous_id or index < 10,
            condition=condition,
            metadata={"policy": ego},
        )
        for seed in range(5)
        for condition in (pair.homogeneous_id, pair.heterogeneous_id)
        for index in range(20)
    ]
    return SpikeRun(
        kind="dry_run",
        spike_id=f"{axis}-{stage}-dry-run",
        prereg_sha="dry-run-no-prereg",
        git_tag="dry-run",
        axis=axis,
        sub_stage=stage,
        condition_pair=pair,
        seeds=list(range(5)),
        episode_results=episodes,
    )


def _repro_command(
    axis: str, config: EvaluationConfig, registration: LockedRegistration | None
) -> str:
    """Return a command line that repeats the spike; no host paths, for it is hashed."""
    words = ["cadenza", "spike", "run", "--axis", axis, "--task", config.task]
    words += [f"--ego={ego.name}={ego.source}" for ego in config.policies]
    words += [f"--episodes={config.episodes_per_seed}", f"--out=runs/{axis}"]
    design = f"--prereg={registration.path}" if registration else f"--seeds={len(config.seeds)}"
    return shlex.join([*words, design])


def _ego(text: str) -> PolicyChoice:
    """Return the policy that ``SOURCE`` or ``NAME=SOURCE`` means."""
    name, equals, source = text.partition("=")
    if not equals:
        source, name = text, re.sub(r"[^A-Za-z0-9_.-]", "-", Path(text).stem)
    return PolicyChoice(name=name, source=source)
