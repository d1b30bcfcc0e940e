"""Checks on what a caller hands to the batched filter.

Shapes and dtypes are looked at in every call, without touching the device; numbers only where the
caller wants it, since reading them waits for the device.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.snapshot import MAX_MAGNITUDE


class StepInput(NamedTuple):
    """Arguments of `BatchedEgoFilter.filter`, radii as tensors; ``start`` is the first's index."""

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
    start: int = 0

    def between(self, start: int, end: int) -> "StepInput":
        """Return the arguments of some environments; ``start`` is kept for messages."""
        shared = set[str]()
        if self.ego_radius.ndim == 0:
            shared.add("ego_radius")
        if self.partner_radii.ndim == 1:
            shared.add("partner_radii")
        parts: dict[str, Any] = {
            name: values if values is None or name in shared else values[start:end]
            for name, values in self.tensors()
        }
        return StepInput(**parts, start=start)

    def tensors(self) -> "list[tuple[str, Tensor | None]]":
        """Return names and tensors."""
        return [(name, getattr(self, name)) for name in self._fields if name != "start"]


def require_step(step: StepInput, sizes: tuple[int, int, int], *, fixed_map: bool) -> None:
    """Check everything but the numbers, without waiting for the device.

    Args:
        step: The arguments.
        sizes: N partners, d Cartesian dimensions, n action components.
        fixed_map: The ego is a double integrator.

    Raises:
        InputError: A tensor is missing, superfluous, or has another shape, dtype or device.
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


def require_authority(left: Tensor, max_age_s: float) -> None:
    """Raise ConfigurationError unless packets of the declared age leave authority everywhere."""
    if not bool(left.all()):
        raise ConfigurationError(
            f"ego-only filter: expected authority left at max_age_s = {max_age_s:.4g} s against "
            "every partner, got none against some; lower max_age_s or the partner's bound, or "
            "raise margin_m."
        )


def _require_like(
    name: str, values: Tensor | None, nominal: Tensor, shapes: tuple[tuple[int, ...], ...]
) -> None:
    if values is None:
        return
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
    for name, values in step.tensors():
        if values is None or name == "previous_action":
            continue
        fine = values.abs() <= MAX_MAGNITUDE  # written this way round so that NaN fails too
        wanted = f"finite numbers up to {MAX_MAGNITUDE:.0e}"
        if name in ("ego_radius", "partner_radii"):
            fine, wanted = fine & (values > 0.0), f"{wanted}, > 0 m"
        elif name == "age_s":
            fine, wanted = fine & (values >= 0.0), f"{wanted}, >= 0 s"
        if not bool(fine.all()):
            found = [int(i) for i in (~fine).nonzero()[0]]
            value = float(values[tuple(found)])
            if values.shape[0:1] == step.nominal.shape[0:1]:
                found[0] += step.start
            raise InputError(
                f"filter: {name}: expected {wanted}, got {value:g} at index {tuple(found)}."
            )
    previous = step.previous_action
    if previous is not None and not bool(
        ((previous.abs() <= MAX_MAGNITUDE).all(1) | previous.isnan().all(1)).all()
    ):
        raise InputError(
            "filter: previous_action: expected finite actions, or a row of NaN where there was "
            "none, got others."
        )


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)
