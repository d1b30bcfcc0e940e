"""Slack of the ego's pairs, partner by partner: adapts it, and remembers it for a return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cadenza.core.errors import InputError
from cadenza.safety.conformal import (
    ConformalRule,
    RuleSettings,
    make_rule,
    require_rate,
    reset_on_partner_swap,
)
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import MAX_MAGNITUDE
from cadenza.safety.state import SafetyState

#: Version of `SlackAdaptation.state_dict`; a reader refuses any other.
ADAPTATION_STATE_VERSION: Final = 1


@dataclass(slots=True)
class _Seat:
    """Everything adapted to one partner."""

    state: SafetyState
    rule: ConformalRule
    awaits_start: bool


class SlackAdaptation:
    """The conformal layer of one ego.

    Raises:
        InputError: The rule does not take these settings.
    """

    def __init__(
        self, *, ego_uid: str, uids: tuple[str, ...], capacity: float, options: SafetyOptions
    ) -> None:
        self._ego_uid = ego_uid
        self._uids = uids
        self._options = options
        self._bound = options.clamp_floor_ratio * capacity
        self._settings = RuleSettings(
            gamma=options.cbf_gamma,
            lambda_bound=self._bound,
            lambda_max=options.lambda_max,
            eta_decay=options.eta_decay,
            step_grid=options.dtaci_steps,
        )
        self._target = (
            options.target_loss if options.conformal_rule == "huriot_sibai" else options.miss_rate
        )
        self.start_over()

    @property
    def state(self) -> SafetyState:
        """The slack as the filter reads it."""
        return self._seat.state

    @property
    def partner_id(self) -> str | None:
        """Who is in the seat; None if unknown."""
        return self._partner_id

    @property
    def bound(self) -> float:
        """Largest magnitude of lambda, m/s^2."""
        return self._bound

    @property
    def awaits_start(self) -> bool:
        """Whether the slack is still to be computed from the error of the first forecast."""
        return self._seat.awaits_start

    def start_over(self) -> None:
        """Forget all partners."""
        self._partner_id: str | None = None
        self._kept: dict[str, _Seat] = {}
        self._seat = self._fresh_seat()

    def notice(self, partner_id: str | None) -> bool | None:
        """Take note of who is in the seat.

        Returns:
            None if nobody new came, else whether the partner was remembered. An unknown partner
            (None) is no change, and the first one known is none either.
        """
        if partner_id is None or partner_id == self._partner_id:
            return None
        left, self._partner_id = self._partner_id, partner_id
        if left is None:
            return None
        kept = self._kept.pop(partner_id, None)
        self._kept[left] = self._seat
        while len(self._kept) > self._options.partner_memory:
            del self._kept[next(iter(self._kept))]  # who left longest ago goes first
        self._seat = self._fresh_seat() if kept is None else kept
        return kept is not None

    def warm_up(self) -> None:
        """Start the stricter phase again, with steps of full size."""
        self.state.warmup_steps_remaining = self._options.n_warmup_steps
        self._seat.rule.restart()

    def update(self, scores: LambdaDict) -> None:
        """Move the slack of the scored pairs; see `ConformalRule.update`."""
        self._seat.rule.update(self.state, scores)

    def ask(self, errors: LambdaDict) -> None:
        """Start the slack at minus the error of the forecast per pair, m/s^2, within its bound."""
        self.state.lambda_ = {key: -min(error, self._bound) for key, error in errors.items()}

    def settle(self, granted: LambdaDict) -> None:
        """Let the rule go on from the slack that entered the rows."""
        self.state.lambda_ = dict(granted)
        self._seat.rule.begin(granted)
        self._seat.awaits_start = False

    def _fresh_seat(self) -> _Seat:
        options = self._options
        state = SafetyState({}, epsilon=self._target, eta=options.eta)
        reset_on_partner_swap(
            state,
            uids=self._uids,
            lambda_safe=max(options.lambda_safe, -self._bound),
            n_warmup_steps=options.n_warmup_steps,
            ego_uid=self._ego_uid,
        )
        rule = make_rule(options.conformal_rule, self._settings)
        rule.begin(state.lambda_)
        return _Seat(state, rule, options.lambda_start == "error_bound")

    def state_dict(self) -> dict[str, Any]:
        """Return slack, rule, partner and the partners remembered, JSON-able."""
        return {
            "version": ADAPTATION_STATE_VERSION,
            "partner_id": self._partner_id,
            "seat": _seat_to_dict(self._seat),
            "kept": [
                {"partner_id": uid, "seat": _seat_to_dict(seat)} for uid, seat in self._kept.items()
            ],
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Of another version, malformed or of other agents; nothing is changed then.
        """
        if payload.get("version") != ADAPTATION_STATE_VERSION:
            raise InputError(
                f"adaptation state: expected version {ADAPTATION_STATE_VERSION}, "
                f"got {payload.get('version')!r}."
            )
        try:
            partner_id = payload["partner_id"]
            if not (partner_id is None or isinstance(partner_id, str)):
                raise InputError(f"adaptation state: expected a partner id, got {partner_id!r}.")
            seat = self._read_seat(payload["seat"])
            kept = {
                str(entry["partner_id"]): self._read_seat(entry["seat"])
                for entry in cast("list[Mapping[str, Any]]", payload["kept"])
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"adaptation state: expected a complete record: {error!r}") from error
        self._partner_id, self._seat, self._kept = partner_id, seat, kept

    def _read_seat(self, payload: Mapping[str, Any]) -> _Seat:
        seat = self._fresh_seat()
        state = SafetyState.from_dict(payload["state"])
        if state.lambda_.keys() != seat.state.lambda_.keys():
            raise InputError(
                f"adaptation state: expected the pairs {sorted(seat.state.lambda_)}, "
                f"got {sorted(state.lambda_)}."
            )
        self._require_usable(state)
        seat.rule.load_dict(payload["rule"])
        if not isinstance(payload["awaits_start"], bool):
            raise InputError(
                f"adaptation state: awaits_start: expected a truth value, got "
                f"{payload['awaits_start']!r}."
            )
        return _Seat(state, seat.rule, payload["awaits_start"])

    def _require_usable(self, state: SafetyState) -> None:
        """Raise InputError unless the rule accepts the target and the rows the slack."""
        if self._options.conformal_rule != "huriot_sibai":
            require_rate("adaptation state", state.epsilon)
        for key, value in state.lambda_.items():
            if not abs(value) <= MAX_MAGNITUDE:
                raise InputError(f"adaptation state: slack of {key} is out of range: {value}.")


def _seat_to_dict(seat: _Seat) -> dict[str, Any]:
    return {
        "state": seat.state.to_dict(),
        "rule": seat.rule.to_dict(),
        "awaits_start": seat.awaits_start,
    }
