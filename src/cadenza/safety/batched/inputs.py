"""Checks on what a caller hands to the batched filter.

Kinds, shapes and dtypes are looked at in every call, without touching the device. So are numbers;
but naming a bad one waits for the device, so without that its environment is only marked.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Final, NamedTuple

import torch
from torch import Tensor

from cadenza.core.checks import is_real, real_array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.snapshot import MAX_MAGNITUDE

#: What a message adds to the range of all numbers.
_WANTED: Final = {
    "ego_radius": ", > 0 m",
    "partner_radii": ", > 0 m",
    "age_s": ", >= 0 s",
    "previous_action": ", or a row of NaN where there was none",
}


class StepInput(NamedTuple):
    """Arguments of `BatchedEgoFilter.filter`; once checked, radii are (B, 1) and (B, N)."""

    nominal: Tensor
    ego_position: Tensor
    ego_velocity: Tensor
    partner_positions: Tensor
    partner_velocities: Tensor
    ego_radius: Tensor
    partner_radii: Tensor
    lambda_: Tensor | None
    age_s: Tensor | None
    predicted_velocities: Tensor | None
    previous_action: Tensor | None
    jacobian: Tensor | None
    bias: Tensor | None

    def between(self, start: int, end: int) -> "StepInput":
        """Return the arguments of some environments."""
        return self._make(None if values is None else values[start:end] for values in self)


def require_step(step: StepInput, sizes: tuple[int, int, int], *, fixed_map: bool) -> StepInput:
    """Return ``step`` with radii per environment, after checking everything but the numbers.

    Args:
        step: The arguments.
        sizes: N partners, d Cartesian dimensions, n action components.
        fixed_map: The ego is a double integrator.

    Raises:
        InputError: A tensor is missing, superfluous, none at all, or has another shape, dtype or
            device.
    """
    partners, d, n = sizes
    if step.nominal.dtype not in (torch.float64, torch.float32):
        raise InputError(f"filter: nominal: expected float64 or float32, got {step.nominal.dtype}.")
    if step.nominal.ndim != 2:
        raise InputError(f"filter: nominal: expected shape (B, {n}), got {_shape(step.nominal)}.")
    size = step.nominal.shape[0]
    each = (size, partners)
    for name, shapes in (
        ("nominal", ((size, n),)),
        ("ego_position", ((size, d),)),
        ("ego_velocity", ((size, d),)),
        ("partner_positions", ((*each, d),)),
        ("partner_velocities", ((*each, d),)),
        ("ego_radius", ((), (size,))),
        ("partner_radii", ((partners,), each)),
        ("lambda_", (each,)),
        ("age_s", (each,)),
        ("predicted_velocities", ((*each, d),)),
        ("previous_action", ((size, n),)),
        ("jacobian", ((size, d, n),)),
        ("bias", ((size, d),)),
    ):
        _require_like(name, getattr(step, name), step.nominal, shapes)
    if fixed_map and (step.jacobian is not None or step.bias is not None):
        raise InputError(
            "filter: jacobian, bias: expected none for a double integrator, whose map is the "
            "identity; build the filter with the ego's own control model."
        )
    if not fixed_map and step.jacobian is None:
        raise InputError(
            f"filter: jacobian: expected shape ({size}, {d}, {n}), got None; an ego that is no "
            "double integrator has another action map in every state."
        )
    ego_radius = step.ego_radius.expand(size).unsqueeze(1)
    return step._replace(ego_radius=ego_radius, partner_radii=step.partner_radii.expand(each))


def require_authority(left: Tensor, max_age_s: float) -> None:
    """Raise ConfigurationError unless packets of the declared age leave authority everywhere."""
    if not bool(left.all()):
        raise ConfigurationError(
            f"ego-only filter: expected authority left at max_age_s = {max_age_s:.4g} s against "
            "every partner, got none against some; lower max_age_s or the partner's bound, or "
            "raise margin_m."
        )


def require_short_step(short: Tensor, dt: float) -> None:
    """Raise ConfigurationError unless no partner may outturn the ego within a step."""
    if not bool(short.all()):
        raise ConfigurationError(
            f"ego-only filter: expected a_p dt^2 <= 6 D for every partner, got dt = {dt:.4g} s, "
            "too long for some bound a_p and contact distance D; shorten the control step."
        )


def _require_like(
    name: str, values: Tensor | None, nominal: Tensor, shapes: tuple[tuple[int, ...], ...]
) -> None:
    if values is None:
        return
    require_tensor(f"filter: {name}", values)
    if values.dtype != nominal.dtype or values.device != nominal.device:
        raise InputError(
            f"filter: {name}: expected {nominal.dtype} on {nominal.device} like the nominal "
            f"actions, got {values.dtype} on {values.device}."
        )
    if tuple(values.shape) not in shapes:
        raise InputError(
            f"filter: {name}: expected shape {' or '.join(map(str, shapes))}, got {_shape(values)}."
        )


def require_numbers(step: StepInput) -> None:
    """Raise InputError for a number that is not finite or out of range; waits for the device."""
    for name, values, fine in _looked_at(step):
        if not bool(fine.all()):
            found = tuple(int(i) for i in (~fine).nonzero()[0])
            raise InputError(
                f"filter: {name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}"
                f"{_WANTED.get(name, '')}, got {float(values.detach()[found]):g} at index {found}."
            )


def marked(step: StepInput) -> StepInput:
    """Return ``step`` with harmless numbers for bad ones; does not wait for the device.

    The nominal action and the one before it are NaN in every environment that had a bad number.
    """
    looked_at = list(_looked_at(step))
    # One tensor at a time: torch would spread the conjunction of all over threads.
    rows = [fine.flatten(1).all(1, keepdim=True) for _, _, fine in looked_at]
    good = reduce(torch.logical_and, rows)
    clean = {name: torch.where(fine, values, 1.0) for name, values, fine in looked_at}
    clean["nominal"] = torch.where(good, step.nominal, torch.nan)
    if step.previous_action is not None:
        clean["previous_action"] = torch.where(good, step.previous_action, torch.nan)
    return step._replace(**clean)


def _looked_at(step: StepInput) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield names and tensors, and where their numbers are finite and in range."""
    for name, values in zip(step._fields, step, strict=True):
        if values is None:
            continue
        fine = values.abs() <= MAX_MAGNITUDE  # written this way round so that NaN fails too
        if name in ("ego_radius", "partner_radii"):
            fine = fine & (values > 0.0)
        elif name == "age_s":
            fine = fine & (values >= 0.0)
        elif name == "previous_action":
            fine = fine | values.isnan().all(1, keepdim=True)
        yield name, values, fine


def require_tensor(name: str, values: object) -> None:
    """Raise InputError unless ``values`` is a tensor."""
    if not isinstance(values, Tensor):
        raise InputError(
            f"{name}: expected a tensor, got {type(values).__name__}; "
            "convert it with torch.as_tensor."
        )


def tensor_like(name: str, values: object, like: Tensor) -> Tensor:
    """Return numbers as a tensor of the dtype and on the device of ``like``; a tensor as it is."""
    if isinstance(values, Tensor):
        return values
    if is_real(values):  # filled on the device: a graph capture allows no copy from the host
        return torch.full((), float(values), dtype=like.dtype, device=like.device)
    return torch.as_tensor(real_array(name, values), dtype=like.dtype, device=like.device)


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)
