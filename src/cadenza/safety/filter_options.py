"""Options of the ego-only filter: checked together, resolved once.

A combination in which an option would have no effect is refused, so that every option of a
filter that exists changes what it does.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Final, Literal, TypeAlias, TypedDict

from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError
from cadenza.safety.budget_split import BudgetSplitStrategy, make_budget_split
from cadenza.safety.cbf import DEFAULT_CBF_GAMMA, Plant
from cadenza.safety.contracts import MAX_BOUND, MIN_BOUND

#: Which row keeps a pair apart: exact for sampled control, or the classical continuous-time one.
Barrier: TypeAlias = Literal["sampled", "wae"]
#: Exponent of h in the classical row.
CbfPower: TypeAlias = Literal[1, 3]
CBF_POWERS: Final = (1, 3)
#: "upstream" reproduces the published filter, faults included.
Compat: TypeAlias = Literal["upstream"]
#: What to do when no action meets every row.
OnInfeasible: TypeAlias = Literal["least_violation", "raise"]
#: What is promised, where the ego's model leaves a choice: passive safety.
Guarantee: TypeAlias = Literal["passive"]
#: The same under its older name; "rows" stands for the model's own promise.
MultiPartner: TypeAlias = Literal["rows", "passive"]
#: What `Bounds.action_rate` does: nothing, give way to the rows, or never give way.
RateLimit: TypeAlias = Literal["off", "soft", "hard"]

#: Longest packet age the filter can be declared for, s.
MAX_AGE_S: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """How the rows are built and met; what a filter and the runtime around it have in common.

    Attributes:
        cbf_gamma: Rate at which overlap is undone, 1/s, and the runtime's gain from the conformal
            margin (m/s) to lambda (m/s^2); of the classical row, the gain of its class-K function.
        margin_m: Distance kept in addition to the radii, m.
        prediction_error: Bound on the error of the predicted partner acceleration, m/s^2. None
            trusts no prediction: each row takes the partner's bound, or the forecast push where
            that is larger. The runtime takes the bound as well in a step whose forecast claims a
            larger error, or none.
        barrier: "sampled" is the proved row; "wae" the classical one, never certified.
        compat: "upstream", with "wae" only: the partner is counted on to brake, its acceleration
            is the forecast's, ages are ignored, lambda enters as it is, infeasible raises; the
            runtime then brakes.
        cbf_power: Exponent of h in the classical row, 1 or 3.
        max_age_s: Age up to which packets are covered by the guarantee, s; it costs authority.
        position_error: Bound on the error of every measured position of a partner relative to the
            ego, m. Where this or the next is above 0, the rows are those of a remembered direction.
        velocity_error: The same of its velocity, m/s.
        budget_split: None guards against partners; a strategy or its name shares the row with
            partners that run the same filter. The runtime takes a name.
        rate_limit: "soft" keeps every action component within ``Bounds.action_rate`` of the
            previous one unless the rows need more; "hard" keeps it always; "off" never.
        guarantee: None promises what is proved for the ego's model: of an ego that commands its
            acceleration the rows, met as far as they can be with two or more partners. "passive"
            brakes, with two or more partners and beside obstacles, where nothing else keeps the
            ego's own speed at any contact to ``contact_speed``, which is another guarantee and not
            a stronger one.
        contact_speed: Own speed tolerated at a contact, m/s; "passive" only.
        multi_partner: The older name of ``guarantee``; "rows" stands for None.
    """

    cbf_gamma: float = DEFAULT_CBF_GAMMA
    margin_m: float = 0.0
    prediction_error: float | None = None
    barrier: Barrier = "sampled"
    compat: Compat | None = None
    cbf_power: CbfPower = 1
    max_age_s: float = 0.0
    position_error: float = 0.0
    velocity_error: float = 0.0
    budget_split: BudgetSplitStrategy | str | None = None
    rate_limit: RateLimit = "off"
    guarantee: Guarantee | None = None
    contact_speed: float = 0.0
    multi_partner: InitVar[MultiPartner | None] = None

    def __post_init__(self, multi_partner: MultiPartner | None) -> None:
        _check_choice("multi_partner", multi_partner, (None, "rows", "passive"))
        if multi_partner is None:
            return
        meant = None if multi_partner == "rows" else multi_partner
        if self.guarantee not in (None, meant):
            raise ConfigurationError(
                f"filter: expected guarantee or multi_partner, its older name, got "
                f"{self.guarantee!r} and {multi_partner!r}."
            )
        object.__setattr__(self, "guarantee", meant)


class BatchedKeywords(TypedDict, total=False):
    """Keywords for editors and type checkers: the options of the filter of many environments."""

    cbf_gamma: float
    margin_m: float
    max_age_s: float
    position_error: float
    velocity_error: float
    budget_split: BudgetSplitStrategy | str | None
    guarantee: Guarantee | None
    multi_partner: MultiPartner | None
    contact_speed: float
    plant: Plant


class EgoOnlyKeywords(BatchedKeywords, total=False):
    """The same for all fields of `EgoOnlyOptions`."""

    prediction_error: float | None
    barrier: Barrier
    compat: Compat | None
    cbf_power: CbfPower
    rate_limit: RateLimit
    on_infeasible: OnInfeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class EgoOnlyOptions(RowOptions):
    """How an ego-only filter behaves.

    Attributes:
        plant: How the plant integrates one control step; "zoh" covers both kinds. It says what
            the plant is, so it may be set, without effect, beside ``barrier="wae"``.
        on_infeasible: "least_violation" returns the least unsafe action, flagged; "raise" raises
            `ConcertoSafetyInfeasible`.

    Raises:
        ConfigurationError: A value is out of range, or an option has no effect beside another.
    """

    plant: Plant = "zoh"
    on_infeasible: OnInfeasible = "least_violation"

    def __post_init__(self, multi_partner: MultiPartner | None) -> None:
        RowOptions.__post_init__(self, multi_partner)
        for name, lowest, largest in (
            ("cbf_gamma", MIN_BOUND, MAX_BOUND),
            ("margin_m", 0.0, MAX_BOUND),
            ("max_age_s", 0.0, MAX_AGE_S),
            ("position_error", 0.0, MAX_BOUND),
            ("velocity_error", 0.0, MAX_BOUND),
            ("contact_speed", 0.0, MAX_BOUND),
        ):
            _check_range(name, getattr(self, name), lowest, largest)
        if self.prediction_error is not None:
            _check_range("prediction_error", self.prediction_error, 0.0, MAX_BOUND)
        for name, choices in (
            ("plant", ("zoh", "semi_implicit")),
            ("on_infeasible", ("least_violation", "raise")),
            ("barrier", ("sampled", "wae")),
            ("compat", (None, "upstream")),
            ("cbf_power", CBF_POWERS),
            ("rate_limit", ("off", "soft", "hard")),
            ("guarantee", (None, "passive")),
        ):
            _check_choice(name, getattr(self, name), choices)
        self._check_combinations()
        if isinstance(self.budget_split, str):
            object.__setattr__(self, "budget_split", make_budget_split(self.budget_split))
        else:
            _check_split(self.budget_split)

    def _check_combinations(self) -> None:
        sampled, upstream = self.barrier == "sampled", self.compat is not None
        split = self.budget_split is not None
        for broken, message in (
            (sampled and upstream, 'compat="upstream" needs barrier="wae"'),
            (sampled and self.cbf_power != 1, 'cbf_power belongs to barrier="wae"'),
            (
                not sampled and self.max_age_s > 0.0,
                'max_age_s needs barrier="sampled"; the classical row has no guarantee to extend',
            ),
            (
                upstream and self.prediction_error is not None,
                'compat="upstream" trusts the forecast; leave prediction_error out',
            ),
            (upstream and split, 'compat="upstream" shares no row; leave budget_split out'),
            (
                split and self.prediction_error is not None,
                "a partner that shares the row is not forecast; leave prediction_error out",
            ),
            (
                split and self.max_age_s > 0.0,
                "two agents that see each other late do not keep the same row; leave max_age_s "
                "or budget_split out",
            ),
            (
                self.passive
                and (split or not sampled or self.plant != "zoh" or self.max_age_s > 0.0),
                'guarantee="passive" is for current packets and plant="zoh"; leave barrier, '
                "budget_split and max_age_s out",
            ),
            (
                self.measures
                and (not sampled or split or self.passive or self.prediction_error is not None),
                "position_error and velocity_error are for rows that trust bounds alone; leave "
                "barrier, budget_split, guarantee and prediction_error out",
            ),
            (
                self.passive and (self.raises or self.rate_limit != "off"),
                'guarantee="passive" always brakes; leave on_infeasible and rate_limit out',
            ),
            (
                not self.passive and self.contact_speed != 0.0,
                'contact_speed belongs to guarantee="passive"',
            ),
        ):
            if broken:
                raise ConfigurationError(f"filter: {message}.")

    @property
    def upstream(self) -> bool:
        """Whether the published filter is reproduced."""
        return self.compat is not None

    @property
    def raises(self) -> bool:
        """Whether a step without an admissible action raises."""
        return self.upstream or self.on_infeasible == "raise"

    @property
    def undoing_rate(self) -> float:
        """Rate at which the rows undo overlap, 1/s; 0 for the classical row, which does not."""
        return self.cbf_gamma if self.barrier == "sampled" else 0.0

    @property
    def always_feasible(self) -> bool:
        """Whether a lone row is met in every step that starts in the safe set."""
        return self.rate_limit != "hard" and self.prediction_error is None

    @property
    def passive(self) -> bool:
        """Whether several partners, or one beside obstacles, are met by passive safety."""
        return self.guarantee == "passive"

    @property
    def measures(self) -> bool:
        """Whether errors of measurement are stated, and rows built along remembered directions."""
        return self.position_error > 0.0 or self.velocity_error > 0.0

    @property
    def brakes_radially(self) -> bool:
        """Whether pushing straight away is proved wherever a lone row cannot be met."""
        return self.barrier == "sampled" and self.always_feasible and self.strategy is None

    @property
    def strategy(self) -> BudgetSplitStrategy | None:
        """The split with cooperating partners, or None."""
        return None if isinstance(self.budget_split, str) else self.budget_split


def _check_range(name: str, value: object, lowest: float, largest: float) -> None:
    if not (is_real(value) and lowest <= value <= largest):
        raise ConfigurationError(
            f"filter: {name}: expected a number in [{lowest:g}, {largest:g}], got {value!r}."
        )


def _check_split(split: object) -> None:
    if not isinstance(split, BudgetSplitStrategy | None):
        raise ConfigurationError(
            "filter: budget_split: expected a BudgetSplitStrategy, the name of one or None, "
            f"got {split!r}."
        )


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    # By type as well: True equals 1, and an array does not say whether it equals anything.
    if isinstance(value, bool) or not any(
        isinstance(value, type(choice)) and value == choice for choice in choices
    ):
        raise ConfigurationError(f"filter: {name}: expected one of {choices}, got {value!r}.")
