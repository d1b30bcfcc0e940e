"""Conformal rules under one Protocol, as the runtime drives them.

A rule receives the signed scores of the pairs whose forecast fell due, moves their slack in
`SafetyState.lambda_`, and counts the warm-up down by one step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, cast, runtime_checkable

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.conformal.checks import (
    Pair,
    require_known_pairs,
    require_positive,
    require_rate,
)
from cadenza.safety.conformal.dtaci import DEFAULT_INTERVAL, DEFAULT_STEP_GRID, DtaciTracker
from cadenza.safety.conformal.margin import (
    IntegralMargin,
    decayed,
    lambda_of,
    margin_of,
    next_margin,
    warm_miss_rate,
)
from cadenza.safety.conformal.one_sided import update_lambda
from cadenza.safety.pairs import LambdaDict, canonical_pair_key
from cadenza.safety.state import SafetyState

#: Version of every rule's `to_dict`; a reader refuses any other.
RULE_SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Numbers a rule needs beside the target and step size in `SafetyState`.

    Attributes:
        gamma: Gain from a margin (m/s) to lambda (m/s^2), 1/s, > 0.
        lambda_bound: Largest magnitude of lambda, m/s^2, > 0.
        lambda_max: Largest lambda of the one-sided rule, m/s^2, in [0, lambda_bound]; above 0 it
            may relax a row, which voids the certificate of that step.
        integral_gain: K_i of the two-sided rule, m/s, >= 0; 0 leaves the integral term out.
        eta_decay: p of the two-sided rule's steps eta / k^p, in [0, 1); 0 keeps them constant.
        step_grid: Step sizes of the aggregated rule, m/s per miss.
        interval: Steps over which the aggregated rule competes with its best expert.
    """

    gamma: float
    lambda_bound: float
    lambda_max: float = 0.0
    integral_gain: float = 0.0
    eta_decay: float = 0.0
    step_grid: tuple[float, ...] = DEFAULT_STEP_GRID
    interval: int = DEFAULT_INTERVAL

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)
        require_positive("lambda_bound", self.lambda_bound)
        if not 0.0 <= self.lambda_max <= self.lambda_bound:
            raise InputError(
                f"conformal: lambda_max: expected a number in [0, {self.lambda_bound:g}], "
                f"got {self.lambda_max}."
            )
        if not 0.0 <= self.integral_gain < math.inf:
            raise InputError(
                f"conformal: integral_gain: expected a finite number >= 0, got {self.integral_gain}"
            )
        if not 0.0 <= self.eta_decay < 1.0:
            raise InputError(
                f"conformal: eta_decay: expected a number in [0, 1), got {self.eta_decay}; from 1 "
                "on the margin could stop before it arrives."
            )

    @property
    def largest_margin(self) -> float:
        """Margin at which lambda reaches its bound, m/s."""
        return self.lambda_bound / self.gamma


@runtime_checkable
class ConformalRule(Protocol):
    """Moves the slack of pairs by how wrong the forecasts were."""

    #: Name under which `make_rule` finds it.
    name: ClassVar[str]

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; these start over at the given slack, m/s^2."""
        ...

    def restart(self) -> None:
        """Take what comes for new: decaying steps begin at their full size; the rest stays."""
        ...

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """Move the slack of the scored pairs, in place; pairs without a score keep theirs.

        Args:
            state: Slack, target, step size and warm-up counter, which falls by one.
            scores: Signed score per pair, m/s; may be empty.

        Raises:
            InputError: An unknown pair or a score that is not finite; nothing is changed then.
        """
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the rule's memory as JSON-able values."""
        ...

    def load_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `to_dict`.

        Raises:
            InputError: Of another rule or version, or malformed; the rule is then unchanged.
        """
        ...


class TwoSidedRule:
    """Adaptive conformal inference on a margin; see `cadenza.safety.conformal.margin`."""

    name: ClassVar[str] = "two_sided"

    def __init__(self, settings: RuleSettings) -> None:
        """Keep the settings; `begin` names the pairs."""
        self._settings = settings
        self._largest = settings.largest_margin
        self._memory: dict[Pair, IntegralMargin] = {}
        self._updates: dict[Pair, int] = {}

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; without integral term and decay lambda itself is the whole memory."""
        settings = self._settings
        self._memory, self._updates = {}, {}
        if settings.integral_gain > 0.0:
            self._memory = {
                key: IntegralMargin(margin_of(value, settings.gamma))
                for key, value in lambda_.items()
            }
        if settings.eta_decay > 0.0:
            self._updates = dict.fromkeys(lambda_, 0)

    def restart(self) -> None:
        """See `ConformalRule.restart`."""
        self._updates = dict.fromkeys(self._updates, 0)

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`."""
        require_rate("two_sided", state.epsilon)
        require_known_pairs(state.lambda_, scores)
        gain, gamma = self._settings.integral_gain, self._settings.gamma
        largest, miss_rate = self._largest, warm_miss_rate(state)
        for key, score in scores.items():
            eta = self._next_step_size(key, state.eta) if self._updates else state.eta
            if self._memory:
                memory = self._memory[key]
                memory.update(score, gain=gain, eta=eta, miss_rate=miss_rate, largest=largest)
                q = memory.used(gain, largest)
            else:
                q = margin_of(state.lambda_[key], gamma)
                q = next_margin(q, score, eta=eta, miss_rate=miss_rate, largest=largest)
            state.lambda_[key] = lambda_of(q, gamma)
        _count_down(state)

    def _next_step_size(self, key: Pair, eta: float) -> float:
        """Return eta / k^p, m/s, for the k-th update of a pair."""
        self._updates[key] += 1
        return decayed(eta, self._updates[key], self._settings.eta_decay)

    def to_dict(self) -> dict[str, Any]:
        """Return the memory of the integral term and of the decay, where they are on."""
        pairs = {key: [*m.to_list()] for key, m in self._memory.items()}
        for key, count in self._updates.items():
            pairs.setdefault(key, []).append(count)
        return _record(self.name, pairs)

    def load_dict(self, payload: Mapping[str, Any]) -> None:
        """See `ConformalRule.load_dict`."""
        loaded = _entries(self.name, payload, self._memory or self._updates)
        updates: dict[Pair, int] = {}
        if self._updates:
            updates = {key: _count(self.name, value) for key, value in loaded.items()}
            loaded = {key: value[:-1] for key, value in loaded.items()}
        if self._memory:
            self._memory = {key: IntegralMargin.from_list(value) for key, value in loaded.items()}
        self._updates = updates


class DtaciRule:
    """Several step sizes weighed against each other; see `cadenza.safety.conformal.dtaci`."""

    name: ClassVar[str] = "dtaci"

    def __init__(self, settings: RuleSettings) -> None:
        """Keep the settings, checking the grid; `begin` names the pairs."""
        self._settings = settings
        self._trackers: dict[Pair, DtaciTracker] = {}
        self._start(0.0)

    def _start(self, lambda_: float) -> DtaciTracker:
        settings = self._settings
        return DtaciTracker.start(
            margin_of(lambda_, settings.gamma),
            steps=settings.step_grid,
            interval=settings.interval,
        )

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; all experts of a pair start at its margin."""
        self._trackers = {key: self._start(value) for key, value in lambda_.items()}

    def restart(self) -> None:
        """Nothing decays: the weights themselves find the step size anew."""

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`; ``state.eta`` plays no part, the grid does."""
        require_rate("dtaci", state.epsilon)
        require_known_pairs(self._trackers, scores)
        for key, score in scores.items():
            tracker = self._trackers[key]
            tracker.update(
                score, miss_rate=warm_miss_rate(state), largest=self._settings.largest_margin
            )
            state.lambda_[key] = lambda_of(tracker.margin, self._settings.gamma)
        _count_down(state)

    def to_dict(self) -> dict[str, Any]:
        """Return every pair's experts."""
        return _record(self.name, {key: t.to_dict() for key, t in self._trackers.items()})

    def load_dict(self, payload: Mapping[str, Any]) -> None:
        """See `ConformalRule.load_dict`; the grid must be the one in the settings."""
        loaded = _entries(self.name, payload, self._trackers)
        trackers = {key: DtaciTracker.from_dict(value) for key, value in loaded.items()}
        for tracker in trackers.values():
            if tracker.steps != self._settings.step_grid:
                raise InputError(
                    f"conformal rule dtaci: expected the step grid {self._settings.step_grid}, "
                    f"got {tracker.steps}; load the state with the options it was saved under."
                )
        self._trackers = trackers


class HuriotSibaiRule:
    """The one-sided rule, clamped to [-lambda_bound, lambda_max]."""

    name: ClassVar[str] = "huriot_sibai"

    def __init__(self, settings: RuleSettings) -> None:
        """Keep the settings; the rule has no memory beside lambda."""
        self._settings = settings

    def begin(self, lambda_: LambdaDict) -> None:
        """Nothing to forget: lambda is the whole memory."""
        del lambda_

    def restart(self) -> None:
        """Nothing decays."""

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`; the loss is max(0, score)."""
        require_known_pairs(state.lambda_, scores)
        in_warmup = state.warmup_steps_remaining > 0
        part = SafetyState(
            {key: state.lambda_[key] for key in scores},
            state.epsilon,
            state.eta,
            state.warmup_steps_remaining,
        )
        loss = {key: max(0.0, score) for key, score in scores.items()}
        bound = self._settings.lambda_bound
        update_lambda(part, loss, in_warmup=in_warmup, lambda_bound=bound)
        for key, value in part.lambda_.items():
            state.lambda_[key] = min(value, self._settings.lambda_max)
        state.warmup_steps_remaining = part.warmup_steps_remaining

    def to_dict(self) -> dict[str, Any]:
        """Return an empty memory."""
        return _record(self.name, {})

    def load_dict(self, payload: Mapping[str, Any]) -> None:
        """See `ConformalRule.load_dict`."""
        _entries(self.name, payload, {})


_RULES: Final[Mapping[str, Callable[[RuleSettings], ConformalRule]]] = {
    TwoSidedRule.name: TwoSidedRule,
    DtaciRule.name: DtaciRule,
    HuriotSibaiRule.name: HuriotSibaiRule,
}
#: Names that `make_rule` knows.
SUPPORTED_RULES: Final = tuple(_RULES)


def make_rule(name: str, settings: RuleSettings) -> ConformalRule:
    """Return a fresh rule.

    Raises:
        UnknownNameError: No rule has this name.
        InputError: The settings do not suit the rule.
    """
    if name not in _RULES:
        raise UnknownNameError(f"conformal rule: expected one of {SUPPORTED_RULES}, got {name!r}.")
    return _RULES[name](settings)


def _count_down(state: SafetyState) -> None:
    state.warmup_steps_remaining = max(0, state.warmup_steps_remaining - 1)


def _count(name: str, memory: object) -> int:
    """Return the count of updates at the end of a pair's memory.

    Raises:
        InputError: There is none, or it is no count.
    """
    count = cast("list[Any]", memory)[-1] if isinstance(memory, list) and memory else None
    if not isinstance(count, int) or count < 0:
        raise InputError(f"conformal rule {name}: expected a count of updates, got {count!r}.")
    return count


def _record(name: str, pairs: Mapping[Pair, object]) -> dict[str, Any]:
    return {
        "schema_version": RULE_SCHEMA_VERSION,
        "rule": name,
        "pairs": [{"a": a, "b": b, "memory": value} for (a, b), value in sorted(pairs.items())],
    }


def _entries(
    name: str, payload: Mapping[str, Any], known: Mapping[Pair, object]
) -> dict[Pair, Any]:
    """Return the memories of a record by pair, after checking rule, version and pairs."""
    found = (payload.get("rule"), payload.get("schema_version"))
    if found != (name, RULE_SCHEMA_VERSION):
        raise InputError(
            f"conformal rule {name}: expected its own record of schema version "
            f"{RULE_SCHEMA_VERSION}, got rule {found[0]!r} of version {found[1]!r}."
        )
    try:
        entries = cast("Sequence[Mapping[str, Any]]", payload["pairs"])
        loaded = {canonical_pair_key(e["a"], e["b"]): e["memory"] for e in entries}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"conformal rule {name}: expected a complete record: {error!r}") from error
    if loaded.keys() != known.keys():
        raise InputError(
            f"conformal rule {name}: expected the pairs {sorted(known)}, got {sorted(loaded)}."
        )
    return loaded
