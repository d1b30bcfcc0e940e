"""The six axes of a spike: per axis the tasks that vary one factor, and the two conditions.

An adapter is data: two conditions of one evaluation that differ in the axis' factor alone, played
with one partner from the same starts. The ids name what is played here; those that begin with
``stage1_pickplace`` are the published ones and need ManiSkill.

Sources: ISO 10218-1:2011, 5.6.4: reduced speed is at most 250 mm/s (axis SA).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cadenza.aht.config import PartnerConfig, SafetyConfig
from cadenza.benchmark.cells import ConditionEntry, EvaluationPlan
from cadenza.benchmark.ego_link import LinkConfig
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.evaluation.prereg import PreregistrationSpec
from cadenza.evaluation.results import ConditionPair, SubStage
from cadenza.partners.varied_body import VARIED_BODY
from cadenza.partners.wrapped import DIFFERENTIAL_DRIVE, SWAPPED

#: Axes of each stage that gates; stage 1a tries the rig of any of them.
STAGE_AXES: Final[dict[SubStage, tuple[str, str]]] = {
    "1b": ("AS", "OM"),
    "2": ("CR", "CM"),
    "3": ("PF", "SA"),
}
#: What an axis may be registered with: the gap is a mean of paired differences.
ESTIMATORS: Final = ("mean_success_rate", "mean/paired-cluster/student-t/v1")
#: A partner's clock beside the ego's 20 Hz, in control steps: the published ratio of 10.
SLOW_CLOCK_STEPS: Final = 10
#: Share of the arms' 0.6 m/s per axis that 250 mm/s are.
REDUCED_SPEED: Final = 0.25 / 0.6
#: Control step at which the unseen partner comes in.
SWAP_STEP: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One axis on one task.

    Attributes:
        task: Registered task.
        partner: Class that plays beside the ego.
        varied: What differs, in words.
        homogeneous: The control; `heterogeneous` is the treatment.
        others: Further conditions, recorded and not gated.
        package: Package that the task needs beyond the base installation.
    """

    task: str
    partner: str
    varied: str
    homogeneous: ConditionEntry
    heterogeneous: ConditionEntry
    others: tuple[ConditionEntry, ...] = field(default=())
    package: str | None = None

    @property
    def pair(self) -> ConditionPair:
        """Ids of control and treatment."""
        return ConditionPair(
            homogeneous_id=self.homogeneous.name, heterogeneous_id=self.heterogeneous.name
        )

    @property
    def conditions(self) -> tuple[ConditionEntry, ...]:
        """All conditions, the control first."""
        return (self.homogeneous, self.heterogeneous, *self.others)

    def require(self) -> None:
        """Raise unless the task can be played here.

        Raises:
            MissingExtraError: Its package is not installed.
        """
        if self.package is not None:
            load_extra(self.package)


def _wrapped(class_name: str, **extra: str) -> PartnerConfig:
    return PartnerConfig(class_name=class_name, extra=extra)


#: Our own filter, and the published one, which ignores how old packets are.
_GUARDED: Final = SafetyConfig(enabled=True)
_PUBLISHED: Final = SafetyConfig.model_validate(
    {"enabled": True, "barrier": "wae", "compat": "upstream"}
)


def _link(profile: str) -> ConditionEntry:
    link = LinkConfig(profile=profile)
    return ConditionEntry(name=f"crossing_link_{profile}", safety=_PUBLISHED, link=link)


def _pick_place(condition_id: str) -> ConditionEntry:
    return ConditionEntry(name=condition_id, condition_id=condition_id)


#: Adapters of every axis, the usual one first.
AXES: Final[dict[str, tuple[Adapter, ...]]] = {
    "AS": (
        Adapter(
            task="crossing",
            partner="crossing_goal_seeker",
            varied="the partner's action space: any acceleration, or a base on wheels",
            homogeneous=ConditionEntry(name="crossing_partner_holonomic", safety=_GUARDED),
            heterogeneous=ConditionEntry(
                name="crossing_partner_differential_drive",
                safety=_GUARDED,
                wrapper=_wrapped(DIFFERENTIAL_DRIVE),
            ),
        ),
        Adapter(
            task="stage1_pickplace",
            partner="arm_sway",
            varied="the partner's body: a second Panda, or a Fetch",
            homogeneous=_pick_place("stage1_pickplace_panda_only_mappo_shared_param"),
            heterogeneous=_pick_place("stage1_pickplace_panda_plus_fetch_ego_aht_happo_per_agent"),
            package="mani_skill",
        ),
    ),
    "OM": (
        Adapter(
            task="cocarry_mj",
            partner="cocarry_leader",
            varied="the ego's senses: everything, or itself alone",
            homogeneous=ConditionEntry(name="cocarry_ego_sees_all"),
            heterogeneous=ConditionEntry(name="cocarry_ego_sees_own", options={"ego_sees": "own"}),
            package="mjbatch",
        ),
    ),
    "CR": (
        Adapter(
            task="cocarry_mj",
            partner="cocarry_leader",
            varied="the partner's clock: the ego's 20 Hz, or 2 Hz",
            homogeneous=ConditionEntry(name="cocarry_one_clock_20hz"),
            heterogeneous=ConditionEntry(
                name="cocarry_two_clocks_20hz_2hz",
                wrapper=_wrapped(VARIED_BODY, hold_steps=str(SLOW_CLOCK_STEPS)),
            ),
            package="mjbatch",
        ),
    ),
    "CM": (
        Adapter(
            task="crossing",
            partner="crossing_goal_seeker",
            varied="the link: ideal, or saturated (100 ms, one packet in ten lost)",
            homogeneous=_link("ideal"),
            heterogeneous=_link("saturation"),
            others=tuple(_link(profile) for profile in ("urllc", "factory", "wifi", "lossy")),
        ),
    ),
    "PF": (
        Adapter(
            task="crossing",
            partner="crossing_goal_seeker",
            varied="the partner: the usual one, or an unseen one from step 50 on",
            homogeneous=ConditionEntry(name="crossing_trained_with_partner", safety=_GUARDED),
            heterogeneous=ConditionEntry(
                name="crossing_unseen_partner_mid_episode_swap",
                safety=_GUARDED,
                wrapper=_wrapped(SWAPPED, then="crossing_chaser", step=str(SWAP_STEP)),
            ),
        ),
    ),
    "SA": (
        Adapter(
            task="cocarry_mj",
            partner="cocarry_leader",
            varied="speed limits: 600 mm/s for both arms, or 250 mm/s for the partner",
            homogeneous=ConditionEntry(name="cocarry_equal_speed_limits"),
            heterogeneous=ConditionEntry(
                name="cocarry_partner_at_250_mm_s",
                wrapper=_wrapped(VARIED_BODY, reach=f"{REDUCED_SPEED:.6f}"),
            ),
            package="mjbatch",
        ),
    ),
}


def stage_of(axis: str) -> SubStage:
    """Return the stage that gates ``axis``."""
    return next(stage for stage, axes in STAGE_AXES.items() if axis in axes)


def find_adapter(
    axis: str, *, task: str | None = None, pair: ConditionPair | None = None
) -> Adapter:
    """Return the adapter of ``axis`` on ``task``, or with these conditions; the usual one for None.

    Raises:
        ConfigurationError: There is none; lists those there are.
    """
    if axis not in AXES:
        raise ConfigurationError(f"axis: expected one of {', '.join(AXES)}, got {axis!r}.")
    for adapter in AXES[axis]:
        if task in (None, adapter.task) and pair in (None, adapter.pair):
            return adapter
    if pair is not None:
        known = "; ".join(f"{a.homogeneous.name} and {a.heterogeneous.name}" for a in AXES[axis])
        got = f"{pair.homogeneous_id} and {pair.heterogeneous_id}"
        raise ConfigurationError(f"axis {axis}: expected the conditions {known}, got {got}.")
    tasks = ", ".join(adapter.task for adapter in AXES[axis])
    raise ConfigurationError(f"axis {axis}: expected a task among {tasks}, got {task!r}.")


def axis_differences(spec: PreregistrationSpec, plan: EvaluationPlan, git_tag: str) -> list[str]:
    """Return how a plan departs from the registered axis; empty if it does not."""
    try:
        adapter = find_adapter(spec.axis, pair=spec.condition_pair)
    except ConfigurationError as error:
        return [str(error)]
    return list(_differences(spec, adapter, plan, git_tag))


def _differences(
    spec: PreregistrationSpec, adapter: Adapter, plan: EvaluationPlan, git_tag: str
) -> Iterator[str]:
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
    for name, (wanted, got) in pairs.items():
        if wanted != got:
            yield f"{name}: {wanted!r} registered, {got!r} run"
    if spec.estimator not in ESTIMATORS:
        yield f"estimator: {spec.estimator!r} registered, but {ESTIMATORS[0]!r} is what gates"
    if spec.bootstrap_method == "iid":
        yield "bootstrap_method: 'iid' registered, but intervals respect seeds"
