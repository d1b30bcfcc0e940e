"""What the tests of the control-affine filter share."""

import numpy as np
import torch

from cadenza.safety.affine import rk4_step


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def random_states(seed, count, n):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1.5, 1.5, size=(count, n)))


def measured_rate(function, dynamics, x, u, push=None, eps=1e-5):
    """Return d/dt function(x(t)) with u held, by central differences along the motion."""
    ahead = function(rk4_step(dynamics, x, u, eps, push))
    behind = function(rk4_step(dynamics, x, u, -eps, push))
    return (ahead - behind) / (2.0 * eps)
