"""Does a dynamics model learn? A check for acceptance runs.

Test:    Mann-Kendall on the mean errors e_1 ... e_n of n equal windows,
         S = sum_{i<j} sign(e_j - e_i); P(S <= s) under "no trend" is exact, from the number of
         permutations with a given number of inversions.
Source:  Mann, Econometrica 1945; Kendall, "Rank Correlation Methods", 1975.
Limits:  ties add nothing to S.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from cadenza.core.errors import CadenzaError, InputError
from cadenza.learn.callback import BatchCallback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.models.model import DynamicModel
from cadenza.learn.trainer import TrainingShutdownException

#: Windows of a check; each is averaged over num_bp // 10 batches.
WINDOWS: Final = 10
#: Chance that a model whose errors merely fluctuate passes; S <= -21 of 45 for ten windows.
SIGNIFICANCE: Final = 0.05


class LossProgressError(CadenzaError, RuntimeError):
    """A model's prediction errors did not fall."""


def falling_trend_p_value(values: Sequence[float]) -> float:
    """Return the chance of a trend at least as falling as that of ``values`` if there is none.

    Args:
        values: In the order of time, finite.
    """
    count = len(values)
    falls = sum(values[j] < values[i] for i in range(count) for j in range(i + 1, count))
    rises = sum(values[j] > values[i] for i in range(count) for j in range(i + 1, count))
    pairs = count * (count - 1) // 2
    inversions = math.ceil((pairs + falls - rises) / 2)  # S = pairs - 2 * inversions
    return sum(_inversion_counts(count)[inversions:]) / math.factorial(count)


def _inversion_counts(count: int) -> list[int]:
    """Return how many permutations of ``count`` numbers have 0, 1, 2, ... inversions."""
    numbers = [1]
    for size in range(2, count + 1):
        wider = [0] * (len(numbers) + size - 1)
        for place in range(size):
            for inversions, ways in enumerate(numbers):
                wider[inversions + place] += ways
        numbers = wider
    return numbers


class LossProgressCheck(LoggingMixin, BatchCallback):
    """Ends training after ``num_bp`` steps: as a success if the model's errors fell, else raising.

    Args:
        model: The dynamics model.
        num_bp: Steps of the check, >= 10.
        data_group: Group the batch is read from.
        input_key: Observation that is modelled.
        generator: Draws the model's predictions, on its device; None makes one seeded 0.

    Raises:
        InputError: ``num_bp`` < 10.
    """

    def __init__(
        self,
        model: DynamicModel,
        num_bp: int,
        data_group: str = "default",
        input_key: str = "obs",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_bp < WINDOWS:
            raise InputError(
                f"LossProgressCheck: expected num_bp >= {WINDOWS} (one step per window), got "
                f"{num_bp}."
            )
        self.cycle = num_bp
        self.data_group = data_group
        self.model = model
        self._window = num_bp // WINDOWS
        self._input_key = input_key
        self._rng = (
            torch.Generator(device=model.device).manual_seed(0) if generator is None else generator
        )
        self._errors: dict[str, list[float]] = {"obs": [], "rew": []}

    def get_batch(  # pyright: ignore[reportIncompatibleMethodOverride] -- hooks name what they read
        self,
        observation: dict[str, Tensor],
        next_observation: dict[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
    ) -> None:
        """Measure the model's mean absolute errors on a batch.

        Args:
            observation: Arrays of shape (B, D) by name.
            next_observation: Arrays of shape (B, D) by name.
            actions: Shape (B, A).
            rewards: Shape (B, 1).
        """
        with torch.no_grad():
            next_obs, reward = self.model.sample(
                action=actions, observation=observation[self._input_key], rng=self._rng
            )
        self._note("obs", (next_obs - next_observation[self._input_key]).abs().mean())
        if reward is not None:
            self._note("rew", (reward - rewards.reshape(reward.shape)).abs().mean())

    def end_cycle(self) -> None:
        """Judge the trend of the errors.

        Raises:
            LossProgressError: No significant fall, for observations or for rewards.
            TrainingShutdownException: The check passed.
        """
        for kind, errors in self._errors.items():
            means = self._window_means(errors)
            p_value = falling_trend_p_value(means) if means else 0.0
            if p_value > SIGNIFICANCE:
                raise LossProgressError(
                    f"LossProgressCheck: expected the {kind} prediction error to fall over "
                    f"{self.cycle} steps (p <= {SIGNIFICANCE}), got p = {p_value:.2g} for the "
                    f"window means {[round(mean, 4) for mean in means]}; lower the learning rate "
                    "or check the data."
                )
        raise TrainingShutdownException("the model's prediction errors fell")

    def state_dict(self) -> dict[str, Any]:
        """Return logs, errors so far and generator."""
        state = super().state_dict()
        state["errors"] = {kind: list(errors) for kind, errors in self._errors.items()}
        state["generator"] = self._rng.get_state()
        return state

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Go on where `state_dict` was taken (with ``load_hparams``).

        Raises:
            CheckpointKeyError: A part is missing.
        """
        super().load_state_dict(state_dict, load_network, load_optimizer, load_hparams)
        if not load_hparams:
            return
        require_parts("LossProgressCheck", state_dict, ("errors", "generator"))
        self._errors = {kind: list(state_dict["errors"][kind]) for kind in self._errors}
        self._rng.set_state(state_dict["generator"].cpu())

    def _note(self, kind: str, error: Tensor) -> None:
        """Log and remember one error."""
        self.log_scalar(f"mbrl/{kind}_pred_err", error)
        self._errors[kind].append(float(error))

    def _window_means(self, errors: Sequence[float]) -> list[float]:
        """Return the mean error of each of the ten windows."""
        size = self._window
        return [
            math.fsum(errors[i * size : (i + 1) * size]) / size
            for i in range(min(WINDOWS, len(errors) // size))
        ]
