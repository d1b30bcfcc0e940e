"""Conformal layer: turns forecast errors of the safe set into the slack of the rows.

Start at:   `make_rule` (name in, rule out), and `docs/conformal.md` (what each rule promises, with
            measured coverage).
Score:      one pair, after a forecast fell due, m/s:  s = h(forecast) - h(now), h the barrier of
            the pair. Positive: the world is less safe than forecast.
Margin:     both rules of ours only tighten: lambda = -gamma q with a margin q >= 0, m/s; gamma,
            1/s, turns it into m/s^2. Misses are allowed at the rate epsilon.

`two_sided`, adaptive conformal inference on a margin
Rule:       miss m = 1 if s > q else 0;   q <- clip(q + eta (m - epsilon), 0, bound / gamma).
Source:     adaptive conformal inference, arXiv:2106.00170, eq. (2), moved from the level to the
            margin itself as in the quantile tracker of arXiv:2307.16896, section 2.1.
Promise:    (1/K) sum m <= epsilon + (q_K - q_0) / (eta K) for every sequence of scores, unless q
            sits at its upper end. It is an equality while q > 0: the rule rises and falls. At
            q = 0 misses may be rarer than epsilon, because fewer than a share epsilon of the
            scores are positive; the (1 - epsilon) quantile is then negative and no row needs help.
Decay:      an optional exponent p in [0, 1) makes the k-th step eta / k^p: while scores stay of one
            kind the margin settles on their quantile instead of hovering about it. Summed by parts,
            the promise becomes (1/K) sum m <= epsilon + q_K K^p / (eta K). The source proves that q
            converges on independent scores if p > 1/2 (arXiv:2402.01139).

`dtaci`, several step sizes at once, weighed by how well their margins did
Experts:    expert k runs the two-sided rule with its own step g_k from one grid.
Loss:       pinball loss of the (1 - epsilon) quantile, whose minimizer that quantile is:
                l_k = max((1 - epsilon)(s - q_k), epsilon (q_k - s))
Weights:    w_k <- (1 - sigma) w_k exp(-rho l_k) / sum_j w_j exp(-rho l_j) + sigma / K
Margin:     q = sum_k w_k q_k, the deterministic form of the algorithm.
Constants:  I, the interval over which the rule competes with the best expert; sigma = 1 / (2 I), a
            share of weight that is spread anew so that an expert can come back;
            rho = sqrt((log(2 K I) + 1) / V), V the sum over the last I steps of sum_k w_k l_k^2.
Source:     DtACI, arXiv:2208.08401, algorithm 1 and section 4. Departures: experts move the margin
            (m/s) instead of the level, as in arXiv:2307.16896; V forgets exponentially with time
            constant I instead of in a window, so the memory is one number.
Promise:    each expert keeps the bound of the two-sided rule with its own g_k. The aggregate's
            coverage is measured, not proved, as sigma and rho are constant (`docs/conformal.md`).

`huriot_sibai`, one-sided, upstream's: lambda follows the mean loss
Rule:       lambda <- lambda + eta (epsilon - l),  l = max(0, s)
Source:     Huriot and Sibai, "Safe decentralized multi-agent control using online conformal
            prediction", theorem 3.
Promise:    for epsilon > 0, (1/K) sum l <= epsilon + (lambda_1 - lambda_safe + eta) / (eta K), if
            the loss is 0 whenever lambda <= lambda_safe.
Limits:     epsilon <= 0 lowers lambda in every step whatever happens, down to the clamp. The rule
            adds m/s (epsilon, l) to m/s^2 (lambda): eta carries 1/s.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real
from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.cbf import pair_h_value
from cadenza.safety.contracts import (
    DEFAULT_WARMUP_STEPS,
    LambdaDict,
    SafetyState,
    canonical_pair_key,
    make_ego_pair_keys,
    make_lambda_dict,
    make_pair_keys,
)
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot

#: Factor by which warm-up makes the rules stricter: the one-sided rule multiplies its (negative)
#: target loss by it; the two-sided rules divide their miss rate by it.
WARMUP_FACTOR: Final = 1.5
#: Score above q that is rounding of the forecast, m/s, and no miss.
SCORE_TOLERANCE: Final = 1e-9
#: Step sizes of the experts, m/s per miss: doubling from a tenth of the two-sided rule's default
#: to about the fastest change of speed within a control step (1 m/s^2 for 0.05 s).
DEFAULT_STEP_GRID: Final = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
#: I, control steps.
DEFAULT_INTERVAL: Final = 500
#: Longest I; beyond, sigma and V no longer move in float64 arithmetic.
_LONGEST_INTERVAL: Final = 10**9
#: Largest number a memory may hold, far above any speed or its square.
_LARGEST_NUMBER: Final = 1e24
#: Versions of `DtaciTracker.to_dict` and of every rule's; a reader refuses any other.
TRACKER_SCHEMA_VERSION: Final = 1
RULE_SCHEMA_VERSION: Final = 1

Pair = tuple[str, str]


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
        _require_positive("lambda_bound", lambda_bound)
    if loss_k.keys() != state.lambda_.keys():
        raise InputError(
            f"conformal: key set mismatch: expected {sorted(state.lambda_)}, got {sorted(loss_k)}."
        )
    _require_finite(state.lambda_, loss_k)
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


def _require_positive(name: str, value: float) -> None:
    if not (is_real(value) and 0.0 < value < math.inf):
        raise InputError(f"conformal: {name} must be strictly positive and finite, got {value}.")


def require_rate(owner: str, value: float) -> None:
    """Raise InputError unless ``value`` is a rate in (0, 1)."""
    if not (is_real(value) and 0.0 < value < 1.0):
        raise InputError(f"{owner}: expected a miss rate in (0, 1), got {value}.")


def _require_finite(known: Collection[Pair], values: Mapping[Pair, float]) -> None:
    """Raise InputError unless every entry of ``values`` is finite and of a known pair."""
    for key, value in values.items():
        if key not in known:
            raise InputError(f"conformal: expected a pair of {sorted(known)}, got {key}.")
        if not math.isfinite(value):
            raise InputError(f"conformal: value of {key}: expected a finite number, got {value}.")


def next_margin(margin: float, score: float, eta: float, miss_rate: float, largest: float) -> float:
    """Return the margin after one score, m/s; all arguments but ``miss_rate`` in m/s."""
    miss = 1.0 if score > margin + SCORE_TOLERANCE else 0.0
    moved = margin + eta * (miss - miss_rate)
    if not moved > 0.0:
        return 0.0
    return largest if largest < moved else moved


def pinball_loss(score: float, margin: float, miss_rate: float) -> float:
    """Return the pinball loss of ``margin`` for the (1 - miss_rate) quantile, m/s."""
    error = score - margin
    return (1.0 - miss_rate) * error if error > 0.0 else -miss_rate * error


@dataclass(slots=True)
class DtaciTracker:
    """Margin of one pair.

    Attributes:
        steps: Step size of every expert, m/s, > 0.
        interval: I, control steps, >= 1.
        margins: Margin of every expert, m/s.
        weights: Weight of every expert; they add up to 1.
        loss_power: V, (m/s)^2.
    """

    steps: tuple[float, ...]
    interval: int
    margins: list[float]
    weights: list[float]
    loss_power: float = 0.0

    @classmethod
    def start(
        cls,
        margin: float,
        *,
        steps: Sequence[float] = DEFAULT_STEP_GRID,
        interval: int = DEFAULT_INTERVAL,
    ) -> "DtaciTracker":
        """Return a tracker whose experts agree on ``margin``, m/s.

        Raises:
            InputError: No steps, a step that is not positive, an interval < 1, or a margin that
                is negative or not finite.
        """
        _check_grid(steps, interval)
        if not 0.0 <= margin < math.inf:
            raise InputError(f"DtaciTracker: expected a margin >= 0 m/s, got {margin}.")
        count = len(steps)
        return cls(tuple(steps), interval, [margin] * count, [1.0 / count] * count)

    @property
    def margin(self) -> float:
        """The margin in force, m/s."""
        return math.fsum(w * q for w, q in zip(self.weights, self.margins, strict=True))

    def update(self, score: float, *, miss_rate: float, largest: float) -> None:
        """Take in one score."""
        losses = [pinball_loss(score, q, miss_rate) for q in self.margins]
        power = sum(w * loss * loss for w, loss in zip(self.weights, losses, strict=True))
        self.loss_power = (1.0 - 1.0 / self.interval) * self.loss_power + power
        if self.loss_power > 0.0:
            self._reweigh(losses)
        self.margins = [
            next_margin(q, score, eta=step, miss_rate=miss_rate, largest=largest)
            for q, step in zip(self.margins, self.steps, strict=True)
        ]

    def _reweigh(self, losses: list[float]) -> None:
        count = len(self.steps)
        rho = math.sqrt((math.log(2.0 * count * self.interval) + 1.0) / self.loss_power)
        least = min(losses)  # leaves the ratios as they are and the exponent below 0
        raised = [
            w * math.exp(-rho * (loss - least))
            for w, loss in zip(self.weights, losses, strict=True)
        ]
        total = math.fsum(raised)
        sigma = 0.5 / self.interval
        self.weights = [(1.0 - sigma) * w / total + sigma / count for w in raised]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able copy that `from_dict` turns back into an equal tracker."""
        return {"schema_version": TRACKER_SCHEMA_VERSION, **asdict(self), "steps": list(self.steps)}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> "DtaciTracker":
        """Return the tracker that `to_dict` described.

        Raises:
            InputError: Unknown version, missing key, or numbers that no tracker can hold.
        """
        if payload.get("schema_version") != TRACKER_SCHEMA_VERSION:
            raise InputError(
                f"DtaciTracker: expected schema version {TRACKER_SCHEMA_VERSION}, "
                f"got {payload.get('schema_version')!r}."
            )
        try:
            steps, margins, weights = (
                [float(x) for x in payload[key]] for key in ("steps", "margins", "weights")
            )
            power = float(payload["loss_power"])
            tracker = cls(tuple(steps), int(payload["interval"]), margins, weights, power)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"DtaciTracker: expected a complete record: {error!r}") from error
        _check_grid(tracker.steps, tracker.interval)
        consistent = len(margins) == len(steps) == len(weights)
        if not (
            consistent and all(0.0 <= x <= _LARGEST_NUMBER for x in (*margins, *weights, power))
        ):
            raise InputError(
                f"DtaciTracker: expected {len(steps)} margins and weights >= 0, got {margins}, "
                f"{weights}."
            )
        return tracker


def _check_grid(steps: Sequence[float], interval: int) -> None:
    if not steps or not all(0.0 < step < math.inf for step in steps):
        raise InputError(f"DtaciTracker: expected step sizes > 0 m/s, got {list(steps)}.")
    if not 1 <= interval <= _LONGEST_INTERVAL:
        raise InputError(f"DtaciTracker: expected an interval >= 1 step, got {interval}.")


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
    """

    gamma: float
    lambda_bound: float
    lambda_max: float = 0.0
    eta_decay: float = 0.0
    step_grid: tuple[float, ...] = DEFAULT_STEP_GRID

    def __post_init__(self) -> None:
        _require_positive("gamma", self.gamma)
        _require_positive("lambda_bound", self.lambda_bound)
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


class ConformalRule(ABC):
    """Moves the slack of pairs by how wrong the forecasts were.

    It keeps a memory per pair where lambda is not all of it.
    """

    #: Name under which `make_rule` finds it.
    name: ClassVar[str]

    def __init__(self, settings: RuleSettings) -> None:
        self._settings = settings
        self._memory: dict[Pair, Any] = {}

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; these start over at the given slack, m/s^2."""
        del lambda_  # the whole memory

    def restart(self) -> None:
        """Take what comes for new: decaying steps begin at their full size; the rest stays."""
        return  # nothing decays

    @abstractmethod
    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """Move the slack of the scored pairs, in place; pairs without a score keep theirs.

        Args:
            state: Slack, target, step size and warm-up counter, which falls by one.
            scores: Signed score per pair, m/s; may be empty.

        Raises:
            InputError: An unknown pair or a score that is not finite; nothing is changed then.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the rule's memory as JSON-able values."""
        pairs = sorted(self._memory.items())
        return {
            "schema_version": RULE_SCHEMA_VERSION,
            "rule": self.name,
            "pairs": [{"a": a, "b": b, "memory": self._saved(value)} for (a, b), value in pairs],
        }

    def load_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `to_dict`.

        Raises:
            InputError: Of another rule or version, or malformed; the rule is then unchanged.
        """
        owner = f"conformal rule {self.name}"
        found = (payload.get("rule"), payload.get("schema_version"))
        if found != (self.name, RULE_SCHEMA_VERSION):
            raise InputError(
                f"{owner}: expected its own record of schema version {RULE_SCHEMA_VERSION}, got "
                f"rule {found[0]!r} of version {found[1]!r}."
            )
        try:
            entries = cast("Sequence[Mapping[str, Any]]", payload["pairs"])
            saved = {canonical_pair_key(e["a"], e["b"]): e["memory"] for e in entries}
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{owner}: expected a complete record: {error!r}") from error
        if saved.keys() != self._memory.keys():
            raise InputError(
                f"{owner}: expected the pairs {sorted(self._memory)}, got {sorted(saved)}."
            )
        self._memory = {key: self._loaded(value) for key, value in saved.items()}

    def _saved(self, memory: Any) -> Any:
        """Return the memory of one pair as JSON-able values."""
        return memory

    def _loaded(self, saved: Any) -> Any:
        """Return the memory of one pair; InputError unless it can be one."""
        return saved

    def _margin_of(self, lambda_: float) -> float:
        """Return the margin of a slack, m/s; a relaxing slack has none."""
        margin = -lambda_ / self._settings.gamma
        return margin if margin > 0.0 else 0.0

    def _move(
        self,
        state: SafetyState,
        scores: LambdaDict,
        known: Collection[Pair],
        moved: Callable[[Pair, float, float], float],
    ) -> None:
        """Set the slack of the scored pairs to the margins ``moved(pair, score, miss rate)``."""
        require_rate(self.name, state.epsilon)
        _require_finite(known, scores)
        warm = state.warmup_steps_remaining > 0
        miss_rate = state.epsilon / WARMUP_FACTOR if warm else state.epsilon
        for key, score in scores.items():
            margin = moved(key, score, miss_rate)
            state.lambda_[key] = 0.0 - self._settings.gamma * margin  # never -0.0
        if warm:
            state.warmup_steps_remaining -= 1


class TwoSidedRule(ConformalRule):
    """Adaptive conformal inference on a margin; the memory counts the updates of decaying steps."""

    name: ClassVar[str] = "two_sided"

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; without decay lambda itself is the whole memory."""
        self._memory = dict.fromkeys(lambda_, 0) if self._settings.eta_decay > 0.0 else {}

    def restart(self) -> None:
        """See `ConformalRule.restart`."""
        self._memory = dict.fromkeys(self._memory, 0)

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`."""
        largest = self._settings.largest_margin

        def moved(key: Pair, score: float, miss_rate: float) -> float:
            eta = state.eta
            if self._memory:
                self._memory[key] += 1
                eta *= self._memory[key] ** -self._settings.eta_decay
            return next_margin(self._margin_of(state.lambda_[key]), score, eta, miss_rate, largest)

        self._move(state, scores, state.lambda_, moved)

    def _saved(self, memory: int) -> list[int]:
        return [memory]

    def _loaded(self, saved: Any) -> int:
        count = cast("list[Any]", saved)[-1] if isinstance(saved, list) and saved else None
        if not isinstance(count, int) or not 0 <= count <= MAX_MAGNITUDE:
            raise InputError(
                f"conformal rule {self.name}: expected a count of updates, got {count!r}."
            )
        return count


class DtaciRule(ConformalRule):
    """Several step sizes weighed against each other; the memory holds the experts of each pair."""

    name: ClassVar[str] = "dtaci"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings)
        self._start(0.0)  # refuses a grid that is none

    def _start(self, lambda_: float) -> DtaciTracker:
        return DtaciTracker.start(self._margin_of(lambda_), steps=self._settings.step_grid)

    def begin(self, lambda_: LambdaDict) -> None:
        """Forget every pair; all experts of a pair start at its margin."""
        self._memory = {key: self._start(value) for key, value in lambda_.items()}

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`; ``state.eta`` plays no part, the grid does."""
        largest = self._settings.largest_margin

        def moved(key: Pair, score: float, miss_rate: float) -> float:
            tracker: DtaciTracker = self._memory[key]
            tracker.update(score, miss_rate=miss_rate, largest=largest)
            return tracker.margin

        self._move(state, scores, self._memory, moved)

    def _saved(self, memory: DtaciTracker) -> dict[str, Any]:
        return memory.to_dict()

    def _loaded(self, saved: Any) -> DtaciTracker:
        tracker = DtaciTracker.from_dict(saved)
        if tracker.steps != self._settings.step_grid:
            raise InputError(
                f"conformal rule dtaci: expected the step grid {self._settings.step_grid}, "
                f"got {tracker.steps}; load the state with the options it was saved under."
            )
        return tracker


class HuriotSibaiRule(ConformalRule):
    """The one-sided rule, clamped to [-lambda_bound, lambda_max]."""

    name: ClassVar[str] = "huriot_sibai"

    def update(self, state: SafetyState, scores: LambdaDict) -> None:
        """See `ConformalRule.update`; the loss is max(0, score)."""
        _require_finite(state.lambda_, scores)
        warmup = state.warmup_steps_remaining
        kept = {key: state.lambda_[key] for key in scores}
        part = SafetyState(kept, state.epsilon, state.eta, warmup)
        loss = {key: max(0.0, score) for key, score in scores.items()}
        bound = self._settings.lambda_bound
        update_lambda(part, loss, in_warmup=warmup > 0, lambda_bound=bound)
        for key, value in part.lambda_.items():
            state.lambda_[key] = min(value, self._settings.lambda_max)
        state.warmup_steps_remaining = part.warmup_steps_remaining


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
