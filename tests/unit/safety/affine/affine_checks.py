"""What the tests of the control-affine filter share."""

import numpy as np
import torch


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def random_states(seed, count, n):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1.5, 1.5, size=(count, n)))


def rk4_step(dynamics, x, u, dt, push=None):
    """Return the state after ``dt`` with action and ``push`` held, by one Runge-Kutta step."""

    def rate(state):
        motion = dynamics.drift(state) + dynamics.input_map(state) @ u
        return motion if push is None else motion + push

    k1 = rate(x)
    k2 = rate(x + 0.5 * dt * k1)
    k3 = rate(x + 0.5 * dt * k2)
    k4 = rate(x + dt * k3)
    return x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def measured_rate(function, dynamics, x, u, push=None, eps=1e-5):
    """Return d/dt function(x(t)) with u held, by central differences along the motion."""
    ahead = function(rk4_step(dynamics, x, u, eps, push))
    behind = function(rk4_step(dynamics, x, u, -eps, push))
    return (ahead - behind) / (2.0 * eps)
