"""Settings of a zoo's training: the only place where their defaults stand."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self, TypeAlias, cast

from pydantic import Field, model_validator

from cadenza.benchmark.tasks import TaskSpec, get_task
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.learn.agents.ppo import MAPPOConfig
from cadenza.learn.settings import Count, FrozenModel
from cadenza.learn.stacked.ppo import require_stackable
from cadenza.partners.zoo_manifest import ZooManifest, ZooMember

Method: TypeAlias = Literal[
    "fcp", "mep", "brdiv", "lbrdiv", "comedi", "behavior", "scripted", "physical"
]
#: Methods that train nothing.
UNTRAINED: Final = frozenset({"scripted", "physical"})


#: Settings that differ from the defaults of `ZooConfig`, by task; of ``ppo`` those named. Robots of
#: `foraging` are paid for loading at once only. With these, four members of seed 0 succeed in 79 84
#: 24 68 of 100 episodes; with the defaults two of them in 86 and 0, after half as many steps again.
SUITED: Final[Mapping[str, Mapping[str, Any]]] = {
    "foraging": {
        "steps": 1_000_000,
        "ppo": {
            "rollout_length": 50,
            "batch_size": 800,
            "gamma": 0.99,
            "entropy_coefficient": 0.03,
            "decay_learning_rate": True,
        },
    }
}


def default_ppo() -> MAPPOConfig:
    """Return settings with which `crossing` is learned within 300 000 steps."""
    return MAPPOConfig(
        rollout_length=200,
        batch_size=1024,
        epochs=8,
        learning_rate=1e-3,
        gamma=0.97,
        max_gradient_norm=10.0,
        normalize_rewards=True,
        initial_log_std=-0.5,
    )


class ZooConfig(FrozenModel):
    """One population; what is not given is what `SUITED` says of the task, else the default.

    Attributes:
        method: ``fcp``, ``mep``, ``brdiv``, ``lbrdiv``, ``comedi``, ``behavior``, ``scripted`` or
            ``physical``.
        task: Registered task with two robots.
        episode_length: Control steps until truncation; None takes the task's.
        options: Settings of the task's environment.
        population: Policies K; ``fcp`` and ``mep`` keep three checkpoints of each.
        steps: Environment steps that each of the K policies is trained for; in ``comedi`` those of
            its rollouts, not of the episodes by which it chooses whom to meet.
        num_envs: Copies of the environment stepped as one.
        seed: Root seed.
        snapshots: Evaluations of the learning curve, from the second on a checkpoint each.
        smoothing: Evaluations that the curve is averaged over, see `fcp.halfway`.
        episodes: Episodes of every measurement.
        alpha: Weight of the population's entropy in ``mep``.
        beta: Weight of cross-play in ``brdiv``.
        tolerance: By how much ``lbrdiv`` wants a return with one's own best response to exceed
            one with another's, τ; of the discounted value-to-go, averaged over visited states.
        multiplier_rate: Step of the multipliers of ``lbrdiv``.
        restart: Every how many rollouts ``lbrdiv`` draws a member anew that does as well with
            another's best response; 0 never.
        cross_weight: Weight α of cross-play in ``comedi``.
        mixed_weight: Weight β of self-play from mixed play in ``comedi``; at least twice α keeps
            members from sabotage.
        preferences: Weights that ``behavior`` draws from; None takes the task's.
        ppo: The learner; actions are clipped, not squashed. Every rollout begins with new episodes,
            so states after ``rollout_length`` steps are met only if an episode ended before.
    """

    method: Method
    task: str
    episode_length: int | None = Field(default=None, gt=0)
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    population: Count = Field(default=4, ge=1)
    steps: Count = Field(default=300_000, ge=1)
    num_envs: Count = Field(default=32, ge=2)
    seed: Count = Field(default=0, ge=0)
    snapshots: Count = Field(default=20, ge=2)
    smoothing: Count = Field(default=3, ge=1)
    episodes: Count = Field(default=100, ge=2)
    alpha: float = Field(default=0.01, ge=0.0)
    beta: float = Field(default=1.0, ge=0.0)
    tolerance: float = Field(default=0.1, gt=0.0)
    multiplier_rate: float = Field(default=0.01, ge=0.0)
    restart: Count = Field(default=0, ge=0)
    cross_weight: float = Field(default=0.2, ge=0.0)
    mixed_weight: float = Field(default=0.4, ge=0.0)
    preferences: tuple[float, ...] | None = Field(default=None, min_length=1)
    ppo: MAPPOConfig = Field(default_factory=default_ppo)

    @model_validator(mode="before")
    @classmethod
    def _suit_the_task(cls, given: Any) -> Any:
        if not isinstance(given, dict):  # settings that are complete
            return given
        own = cast("dict[str, Any]", given)
        suited = dict(SUITED.get(str(own.get("task")), {}))
        if "ppo" in suited:
            suited["ppo"] = default_ppo().model_copy(update=suited["ppo"])
        return {**suited, **own}

    @model_validator(mode="after")
    def _population_is_a_population(self) -> Self:
        require_stackable(self.ppo)
        if self.method in ("brdiv", "lbrdiv") and self.population < 2:
            raise ValueError(
                f"population: expected at least 2 for {self.method}, got {self.population}"
            )
        if self.method == "lbrdiv" and self.num_envs % self.population**2:
            raise ValueError(
                f"num_envs: expected a multiple of {self.population**2} = population² for lbrdiv, "
                f"which plays every pair equally often, got {self.num_envs}"
            )
        return self

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return get_task(self.task)

    @property
    def horizon(self) -> int:
        """Control steps of an episode."""
        return self.episode_length or self.spec.episode_length

    @property
    def iterations(self) -> int:
        """Rollouts, and updates, of each of the K policies."""
        return max(1, self.steps // self.rollout_steps)

    @property
    def rollout_steps(self) -> int:
        """Environment steps of one policy between two updates: a rollout, in ``comedi`` four."""
        rollouts = 4 if self.method == "comedi" else 1
        return rollouts * self.num_envs * self.ppo.rollout_length

    def facts(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return self.model_dump(mode="json")

    def task_sha256(self) -> str:
        """Return the digest of the task's description and of how it is played."""
        played = {
            "task": self.spec.model_dump(mode="json"),
            "episode_length": self.horizon,
            "options": self.spec.complete_options(self.options),
        }
        return sha256_bytes(canonical_json(played))

    def manifest(
        self,
        members: Iterable[ZooMember],
        *,
        code_sha256: str = "",
        package_version: str = "",
        requests: Sequence[dict[str, Any]] = (),
    ) -> ZooManifest:
        """Return a zoo of ``members`` that are played so; see `ZooManifest`."""
        return ZooManifest(
            task=self.task,
            task_version=self.spec.version,
            task_sha256=self.task_sha256(),
            episode_length=self.horizon,
            options=self.options,
            code_sha256=code_sha256,
            package_version=package_version,
            requests=list(requests),
            members=tuple(members),
        )
