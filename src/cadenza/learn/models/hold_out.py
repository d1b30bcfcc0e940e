"""When to stop training a dynamics model, and which members to trust: judged on held-out data.

A lasting share of the transitions never trains. Every ``interval`` steps each member's error on
them is compared with its best; a member that got better is copied aside. After ``patience``
judgements without a better member, the best copies return, the best-ranked members become the
elites, and training rests until ``rest`` steps have passed; then a new round starts.

Source:  MBPO, arXiv:1906.08253, appendix C and its published code (improvement of 1 %, 5 epochs).
Axes:    B = rows, E = members, M = held-out rows.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from cadenza.core.checks import require_counts
from cadenza.core.errors import InputError, refuse
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.models.ensemble import holdout_mask, row_keys
from cadenza.learn.models.model import DynamicModel

Transition = tuple[Tensor, Tensor, Tensor, Tensor]

#: A member improved if its error fell by more than this fraction of its best.
MIN_IMPROVEMENT: Final = 0.01


class HoldOut:
    """Held-out transitions, the members' best versions, and the decision to stop.

    Args:
        fraction: Share of the transitions that never trains, in (0, 1).
        capacity: Held-out rows kept; the oldest are forgotten. >= 1.
        interval: Training steps between judgements, >= 1.
        patience: Judgements without improvement that end a round, >= 1.
        rest: Steps without training after a round; None rests for ever.
        seed: Which transitions are held out.
    """

    def __init__(
        self,
        *,
        fraction: float = 0.1,
        capacity: int = 5_000,
        interval: int = 100,
        patience: int = 5,
        rest: int | None = None,
        seed: int = 0,
    ) -> None:
        if not 0.0 < fraction < 1.0:
            refuse(InputError, "HoldOut", expected="0 < fraction < 1", got=fraction)
        counts = {"capacity": capacity, "interval": interval, "patience": patience}
        require_counts("HoldOut", **counts, rest=1 if rest is None else rest)
        self.fraction = fraction
        self.capacity = capacity
        self.interval = interval
        self.patience = patience
        self.rest = rest
        self.seed = seed
        self.errors: list[float] = []
        self._rows: list[Tensor] = []
        self._keys = torch.zeros(0, dtype=torch.int64)
        self._best: list[float] = []
        self._best_parameters: dict[str, Tensor] = {}
        self._steps = 0
        self._stale = 0
        self._rested: int | None = None

    @property
    def resting(self) -> bool:
        """Whether the model must not be trained now."""
        return self._rested is not None

    def __len__(self) -> int:
        """Return the number of held-out rows, M."""
        return self._keys.numel()

    def keep(self, transition: Transition) -> Tensor:
        """Store the rows that are held out and return which ones train, bool, shape (B,)."""
        keys = row_keys(*transition)
        held = holdout_mask(keys, fraction=self.fraction, seed=self.seed)
        if bool(held.any()):
            self._store(keys[held], [part[held].detach() for part in transition])
        return ~held

    def after_step(self, model: DynamicModel) -> None:
        """Count a training step, or a step of rest; judge the members when it is time."""
        if self._rested is not None:
            self._rested += 1
            if self.rest is not None and self._rested >= self.rest:
                self._best, self._best_parameters = [], {}
                self._steps = self._stale = 0
                self._rested = None
            return
        self._steps += 1
        if self._steps % self.interval == 0 and len(self) > 0:
            self._judge(model)

    def _store(self, keys: Tensor, rows: list[Tensor]) -> None:
        """Append rows that are new; forget the oldest beyond the capacity."""
        new = ~torch.isin(keys, self._keys.to(keys.device))
        new &= _first_occurrences(keys)
        if not bool(new.any()):
            return
        fresh = [row[new] for row in rows]
        old = self._rows or [row[:0] for row in fresh]
        pairs = zip(old, fresh, strict=True)
        self._rows = [torch.cat([a.to(b.device), b])[-self.capacity :] for a, b in pairs]
        self._keys = torch.cat([self._keys.to(keys.device), keys[new]])[-self.capacity :]

    def _judge(self, model: DynamicModel) -> None:
        """Compare the members with their best versions and end the round if none got better."""
        obs, next_obs, action, reward = (rows.to(model.device) for rows in self._rows)
        errors = model.member_errors(obs, next_obs, action, reward)
        self.errors = [float(error) for error in errors]
        model.ensemble.set_elites(errors)
        best = self._best or [math.inf] * len(self.errors)
        pairs = list(zip(best, self.errors, strict=True))
        better = [
            not math.isfinite(old) or (old - new) > MIN_IMPROVEMENT * old for old, new in pairs
        ]
        judged = zip(pairs, better, strict=True)
        self._best = [new if is_better else old for (old, new), is_better in judged]
        self._copy_members(model, better)
        self._stale = 0 if any(better) else self._stale + 1
        if self._stale >= self.patience:
            with torch.no_grad():
                for name, parameter in model.ensemble.member_parameters().items():
                    parameter.copy_(self._best_parameters[name])
            model.ensemble.set_elites(torch.tensor(self._best, device=model.device))
            self._rested = 0

    def _copy_members(self, model: DynamicModel, better: list[bool]) -> None:
        """Copy the parameters of the members that got better aside."""
        chosen = torch.tensor(better, device=model.device)
        for name, parameter in model.ensemble.member_parameters().items():
            value = parameter.detach()
            kept = self._best_parameters.get(name)
            if kept is None:
                self._best_parameters[name] = value.clone()
            else:
                kept[chosen] = value[chosen]

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        return {
            "rows": list(self._rows),
            "keys": self._keys,
            "errors": list(self.errors),
            "best": list(self._best),
            "best_parameters": dict(self._best_parameters),
            "steps": self._steps,
            "stale": self._stale,
            "rested": self._rested,
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on where `state_dict` was taken, with a model on ``device``."""
        require_parts("HoldOut", state, self.state_dict())
        self._rows = list(state["rows"])
        self._keys = state["keys"]
        self.errors = list(state["errors"])
        self._best = list(state["best"])
        self._best_parameters = {
            name: value.to(device).clone() for name, value in state["best_parameters"].items()
        }
        self._steps = int(state["steps"])
        self._stale = int(state["stale"])
        self._rested = state["rested"]


def _first_occurrences(keys: Tensor) -> Tensor:
    """Return which entries of ``keys`` have no equal before them, bool, shape (B,)."""
    order = torch.argsort(keys, stable=True)
    ordered = keys[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(is_first).scatter_(0, order, is_first)
