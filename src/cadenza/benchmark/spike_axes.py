"""The axes of spikes, as ``configs/spike/axes.yaml`` has them, and what is registered of one."""

from functools import cache
from typing import Any, Final

from pydantic import Field

from cadenza.benchmark.cells import ConditionEntry, EvaluationPlan, PlanModel
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import shipped_config
from cadenza.core.yaml_files import read_yaml
from cadenza.evaluation.prereg import PreregistrationSpec
from cadenza.evaluation.results import ConditionPair, SubStage

#: Axes of each stage that gates; stage 1a tries the rig of any of them.
STAGE_AXES: Final[dict[SubStage, tuple[str, str]]] = {
    "1b": ("AS", "OM"),
    "2": ("CR", "CM"),
    "3": ("PF", "SA"),
}
#: What an axis may be registered with: the gap is a mean of paired differences.
ESTIMATORS: Final = ("mean_success_rate", "mean/paired-cluster/student-t/v1")


class Adapter(PlanModel):
    """One axis on one task.

    Attributes:
        task: Registered task.
        partner: Class that plays beside the ego.
        varied: What differs, in words.
        conditions: Control and treatment, then further ones that are recorded and not gated.
        package: Package that the task needs beyond the base installation.
    """

    task: str
    partner: str
    varied: str
    conditions: tuple[ConditionEntry, ...] = Field(min_length=2)
    package: str | None = None

    @property
    def pair(self) -> ConditionPair:
        """Ids of control and treatment."""
        control, treatment, *_ = (condition.name for condition in self.conditions)
        return ConditionPair(homogeneous_id=control, heterogeneous_id=treatment)


@cache
def adapters() -> dict[str, list[Adapter]]:
    """Return the adapters of every axis, the usual one first."""
    content: Any = read_yaml(shipped_config("spike/axes"))
    return {axis: [Adapter.model_validate(one) for one in every] for axis, every in content.items()}


def stage_of(axis: str) -> SubStage:
    """Return the stage that gates ``axis``."""
    return next(stage for stage, axes in STAGE_AXES.items() if axis in axes)


def find_adapter(
    axis: str, *, task: str | None = None, pair: ConditionPair | None = None
) -> Adapter:
    """Return the adapter of ``axis`` on ``task``, or of these conditions; the usual one for None.

    Raises:
        ConfigurationError: There is none; lists those there are.
    """
    every = adapters().get(axis, [])
    for adapter in every:
        if task in (None, adapter.task) and pair in (None, adapter.pair):
            return adapter
    known = [f"{a.task} ({', '.join(a.pair.model_dump().values())})" for a in every]
    asked = task or ("" if pair is None else ", ".join(pair.model_dump().values()))
    raise ConfigurationError(
        f"axis {axis!r}: expected one of {', '.join(known or adapters())}, got {asked or axis!r}; "
        "`cadenza spike list` shows them."
    )


def axis_differences(spec: PreregistrationSpec, plan: EvaluationPlan, git_tag: str) -> list[str]:
    """Return how a plan departs from the registered axis; empty if it does not."""
    try:
        adapter = find_adapter(spec.axis, pair=spec.condition_pair)
    except ConfigurationError as error:
        return [str(error)]
    task = get_task(adapter.task)
    pairs: dict[str, tuple[Any, Any]] = {
        "git_tag": (spec.git_tag, git_tag),
        "task": (adapter.task, plan.env.task),
        "options": (task.complete_options({}), plan.env.options),
        "episode_length": (task.episode_length, plan.env.episode_length),
        "conditions": (adapter.conditions, plan.conditions),
        "partners": ([adapter.partner], [entry.partner.class_name for entry in plan.partners]),
        "seeds": (spec.seeds, list(plan.seeds)),
        "episodes_per_seed": (spec.episodes_per_seed, plan.episodes_per_seed),
    }
    found = [
        f"{k}: {want!r} registered, {got!r} run" for k, (want, got) in pairs.items() if want != got
    ]
    if spec.estimator not in ESTIMATORS or spec.bootstrap_method == "iid":
        how = f"{spec.estimator!r}, {spec.bootstrap_method!r}"
        found.append(f"estimator: {how} registered, {ESTIMATORS[0]!r} over seeds is what gates")
    return found
