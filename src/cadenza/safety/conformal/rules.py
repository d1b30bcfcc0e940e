"""Conformal rules under one Protocol, as the runtime drives them.

A rule receives the signed scores of the pairs whose forecast fell due, moves their slack in
`SafetyState.lambda_`, and counts the warm-up down by one step.

One-sided rule, upstream's: lambda follows the mean loss.

Rule:       lambda <- lambda + eta (epsilon - l),  l = max(0, s)
Source:     Huriot and Sibai, "Safe decentralized multi-agent control using online conformal
            prediction", theorem 3.
Promise:    for epsilon > 0, (1/K) sum l <= epsilon + (lambda_1 - lambda_safe + eta) / (eta K), if
            the loss is 0 whenever lambda <= lambda_safe.
Limits:     epsilon <= 0 lowers lambda in every step whatever happens, down to the clamp. The rule
            adds m/s (epsilon, l) to m/s^2 (lambda): eta carries 1/s.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, cast, runtime_checkable

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real
from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.cbf import pair_h_value
from cadenza.safety.conformal.dtaci import DEFAULT_INTERVAL, DEFAULT_STEP_GRID, DtaciTracker
from cadenza.safety.conformal.margin import (
    WARMUP_FACTOR,
    Pair,
    lambda_of,
    margin_of,
    next_margin,
    require_known_pairs,
    require_pairs,
    require_positive,
    require_rate,
    warm_miss_rate,
)
from cadenza.safety.pairs import (
    LambdaDict,
    canonical_pair_key,
    make_ego_pair_keys,
    make_lambda_dict,
    make_pair_keys,
)
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot
from cadenza.safety.state import DEFAULT_WARMUP_STEPS, SafetyState


def reset_on_partner_swap(
    state: SafetyState,
    *,
    uids: Iterable[str],
    lambda_safe: float = 0.0,
    n_warmup_steps: int = DEFAULT_WARMUP_STEPS,
    ego_uid: str | None = None,
) -> None:
    """Start over with an unknown partner: fresh slack and a warm-up, in place.

    Args:
        state: Its slack and counter are replaced; target and step size stay.
        uids: All agents.
        lambda_safe: Slack to start from, m/s^2.
        n_warmup_steps: Length of the warm-up, steps.
        ego_uid: Given, only the ego's pairs get a slack, as the ego-only filter expects.

    Raises:
        InputError: A duplicate id, a slack that is not finite or a negative warm-up.
    """
    if not math.isfinite(lambda_safe):
        raise InputError(f"partner swap: expected a finite lambda_safe, got {lambda_safe}.")
    if n_warmup_steps < 0:
        raise InputError(f"partner swap: expected n_warmup_steps >= 0, got {n_warmup_steps}.")
    if ego_uid is None:
        state.lambda_ = make_lambda_dict(uids, fill=lambda_safe)
    else:
        state.lambda_ = dict.fromkeys(make_ego_pair_keys(ego_uid, uids), float(lambda_safe))
    state.warmup_steps_remaining = n_warmup_steps


def constant_velocity_predict(snap: AgentSnapshot, dt: float) -> AgentSnapshot:
    """Return the snapshot ``dt`` seconds ahead if the velocity stays."""
    return AgentSnapshot(snap.position + snap.velocity * dt, snap.velocity, snap.radius)


def compute_prediction_gap_for_pairs(
    snaps_now: Mapping[str, AgentSnapshot],
    snaps_predicted: Mapping[str, AgentSnapshot],
    *,
    alpha_pair: float,
    gamma: float,
) -> LambdaDict:
    """Return max(0, h(forecast) - h(now)) of every pair, m/s, with the continuous-time barrier.

    Args:
        snaps_now: The agents.
        snaps_predicted: What they were forecast to be now.
        alpha_pair: Relative braking of every pair, m/s^2.
        gamma: Part of the promised call; the loss is a speed, so no gain enters.

    Raises:
        InputError: The two sets of agents differ, or ``alpha_pair`` is negative or not finite.
    """
    del gamma
    if snaps_now.keys() != snaps_predicted.keys():
        raise InputError(
            "prediction gap: key set mismatch: expected the forecast of "
            f"{sorted(snaps_now)}, got {sorted(snaps_predicted)}."
        )
    losses: LambdaDict = {}
    for a, b in make_pair_keys(snaps_now):
        predicted = pair_h_value(snaps_predicted[a], snaps_predicted[b], alpha_pair=alpha_pair)
        actual = pair_h_value(snaps_now[a], snaps_now[b], alpha_pair=alpha_pair)
        losses[a, b] = max(0.0, predicted - actual)
    return losses


def compute_per_pair_loss(predicted_h: FloatArray, actual_h: FloatArray) -> FloatArray:
    """Return max(0, predicted - actual), element by element.

    Raises:
        InputError: The shapes differ, or a number is NaN.
    """
    if predicted_h.shape != actual_h.shape:
        raise InputError(
            f"per-pair loss: expected equal shapes, got {predicted_h.shape} and {actual_h.shape}."
        )
    loss = np.maximum(0.0, predicted_h - actual_h)
    if np.isnan(loss).any():
        raise InputError("per-pair loss: expected numbers, got NaN among the barrier values.")
    return loss


def update_lambda(
    state: SafetyState,
    loss_k: LambdaDict,
    *,
    in_warmup: bool = False,
    lambda_bound: float | None = None,
) -> None:
    """Apply the one-sided rule to every pair, in place.

    Args:
        state: Slack, target loss and step size; its warm-up counter falls only if ``in_warmup``.
        loss_k: Loss per pair, m/s.
        in_warmup: Use the stricter target of the warm-up.
        lambda_bound: Clamp to +-this, m/s^2; None does not clamp, and a target <= 0, as the
            default one, then lowers lambda for ever.

    Raises:
        InputError: The pairs differ, the bound is not positive, or a loss is not finite.
    """
    if lambda_bound is not None:
        require_positive("lambda_bound", lambda_bound)
    require_pairs(state.lambda_, loss_k)
    target = WARMUP_FACTOR * state.epsilon if in_warmup else state.epsilon
    for key, loss in loss_k.items():
        value = state.lambda_[key] + state.eta * (target - loss)
        if lambda_bound is not None:
            value = min(max(value, -lambda_bound), lambda_bound)
        state.lambda_[key] = value
    if in_warmup:
        state.warmup_steps_remaining = max(0, state.warmup_steps_remaining - 1)


def update_lambda_from_predictor(
    state: SafetyState,
    snaps_now: Mapping[str, AgentSnapshot],
    snaps_prev: Mapping[str, AgentSnapshot],
    *,
    alpha_pair: float,
    gamma: float,
    dt: float,
    in_warmup: bool = False,
    lambda_bound: float | None = None,
    ego_uid: str | None = None,
) -> LambdaDict:
    """Forecast the last step at constant velocity, score it, update lambda, return the loss.

    Args:
        state: Updated in place by `update_lambda`.
        snaps_now: The agents now.
        snaps_prev: The agents one step ago.
        alpha_pair: Relative braking of every pair, m/s^2.
        gamma: Passed on to `compute_prediction_gap_for_pairs`.
        dt: Control step, s.
        in_warmup: Use the stricter target of the warm-up.
        lambda_bound: Clamp to +-this, m/s^2.
        ego_uid: Given, the ego is not forecast but taken as it is, so its own actions cause no
            loss, and only its pairs are scored.

    Raises:
        InputError: As `update_lambda`; or the agents changed between the steps.
    """
    predicted = {uid: constant_velocity_predict(snap, dt) for uid, snap in snaps_prev.items()}
    if ego_uid is not None and ego_uid in predicted and ego_uid in snaps_now:
        predicted[ego_uid] = snaps_now[ego_uid]
    loss = compute_prediction_gap_for_pairs(
        snaps_now, predicted, alpha_pair=alpha_pair, gamma=gamma
    )
    if ego_uid is not None:
        loss = {key: value for key, value in loss.items() if ego_uid in key}
    update_lambda(state, loss, in_warmup=in_warmup, lambda_bound=lambda_bound)
    return loss


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
        eta_decay: p of the two-sided rule's steps eta / k^p, in [0, 1); 0 keeps them constant.
        step_grid: Step sizes of the aggregated rule, m/s per miss.
        interval: Steps over which the aggregated rule competes with its best expert.
    """

    gamma: float
    lambda_bound: float
    lambda_max: float = 0.0
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
        if not (is_real(self.eta_decay) and 0.0 <= self.eta_decay < 1.0):
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
        self._updates: dict[Pair, int] = {}

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; without decay lambda itself is the whole memory."""
        self._updates = dict.fromkeys(lambda_, 0) if self._settings.eta_decay > 0.0 else {}

    def restart(self) -> None:
        """See `ConformalRule.restart`."""
        self._updates = dict.fromkeys(self._updates, 0)

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`."""
        require_rate("two_sided", state.epsilon)
        require_known_pairs(state.lambda_, scores)
        gamma, largest, miss_rate = self._settings.gamma, self._largest, warm_miss_rate(state)
        lambda_, eta = state.lambda_, state.eta
        for key, score in scores.items():
            if self._updates:
                self._updates[key] += 1
                eta = state.eta * self._updates[key] ** -self._settings.eta_decay
            q = next_margin(margin_of(lambda_[key], gamma), score, eta, miss_rate, largest)
            lambda_[key] = lambda_of(q, gamma)
        _count_down(state)

    def to_dict(self) -> dict[str, Any]:
        """Return the updates so far per pair, where steps decay."""
        return _record(self.name, {key: [count] for key, count in self._updates.items()})

    def load_dict(self, payload: Mapping[str, Any]) -> None:
        """See `ConformalRule.load_dict`."""
        loaded = _entries(self.name, payload, self._updates)
        self._updates = {key: _count(self.name, value) for key, value in loaded.items()}


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
    if state.warmup_steps_remaining > 0:
        state.warmup_steps_remaining -= 1


def _count(name: str, memory: object) -> int:
    """Return the count of updates at the end of a pair's memory.

    Raises:
        InputError: There is none, or it is no count.
    """
    count = cast("list[Any]", memory)[-1] if isinstance(memory, list) and memory else None
    if not isinstance(count, int) or not 0 <= count <= MAX_MAGNITUDE:
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
