"""A partner whose unpredictability changes: calm, erratic, calm.

It keeps within reach of the ego and accelerates at random, anew in every step, with a bound that
depends on the regime. Losses are those of the runtime, from forecasts one step ahead.
"""

from collections.abc import Sequence

import numpy as np

from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentSnapshot

DT = 0.05
PAIR = ("ego", "partner")
#: Acceleration bounds of the three regimes, m/s^2.
REGIMES = (0.2, 1.0, 0.2)
CENTRE = np.array([6.0, 0.0])


def make_runtime(**options) -> SafetyRuntime:
    return SafetyRuntime(
        ego_uid="ego",
        control_models={
            "ego": DoubleIntegratorControlModel("ego", 2),
            "partner": DoubleIntegratorControlModel("partner", 2, capacity=1.0),
        },
        bounds=Bounds(2.0, 2.0, 1.0, 0.0, 0.0),
        control_timestep=DT,
        options=SafetyOptions(**options),
    )


def wander(seed: int, steps: int, regimes: Sequence[float] = REGIMES):
    """Yield the agents of ``steps`` control steps."""
    rng = np.random.default_rng(seed)
    position, velocity = CENTRE.copy(), np.zeros(2)
    ego = AgentSnapshot(np.zeros(2), np.zeros(2), 0.2)
    for k in range(steps):
        yield {"ego": ego, "partner": AgentSnapshot(position.copy(), velocity.copy(), 0.2)}
        bound = regimes[k * len(regimes) // steps]
        # Random within the bound, and a pull back that random draws hide.
        accel = rng.uniform(-1.0, 1.0, 2) * 0.6 * bound
        accel -= 0.1 * bound * np.tanh(position - CENTRE + 2.0 * velocity)
        position = position + velocity * DT + 0.5 * DT * DT * accel
        velocity = velocity + DT * accel


def run(seed: int, steps: int, **options):
    """Return losses max(0, score) and the margins in force when they came, m/s; the last margin.

    A margin is never negative, so a score exceeds it exactly if the loss does.
    """
    runtime = make_runtime(**options)
    runtime.begin_run(seed)
    losses, margins = [], []
    gamma = runtime.options.cbf_gamma
    for agents in wander(seed, steps):
        margin = -runtime.lambda_[PAIR] / gamma
        step = runtime.step(np.zeros(2), agents)
        if step.loss is not None:
            losses.append(step.loss[PAIR])
            margins.append(margin)
    return np.array(losses), np.array(margins), -runtime.lambda_[PAIR] / gamma
