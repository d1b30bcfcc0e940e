"""Who plays a seat of N rows: networks in one pass, others by their class, one draw per episode."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.core.errors import InputError, IntegrityError
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.portable import Output, flat_network, perceptron
from cadenza.learn.nn.portable_stack import PolicyStack, stack_key
from cadenza.partners import PartnerSpec, load_partner
from cadenza.partners.pool import PartnerPool
from tests.partner_makers import MemoryPartner

BOUNDS = {"low": np.full(2, -1, np.float32), "high": np.full(2, 1, np.float32)}
CHOICES = {"kind": "choice", "choices": np.arange(5)}
STATES = np.random.default_rng(0).standard_normal((40, 10)).astype(np.float32)


def network(seed, outputs=2, hidden=64, **output):
    """Return a policy of ten numbers with random weights."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(hidden, 10), (hidden,), (hidden, hidden), (hidden,), (outputs, hidden), (outputs,)]
    weights = [0.3 * torch.randn(shape, generator=rng) for shape in shapes]
    ends = output or {"kind": "mean", **BOUNDS, "log_std": torch.full((2,), -0.5)}
    moments = torch.randn(10, generator=rng), torch.rand(10, generator=rng) + 0.5
    return perceptron(weights, "tanh", Output(**ends), standardized=moments)


def remembering(seed):
    """Return a policy of ten numbers that remembers."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"weight_ih": (12, 10), "weight_hh": (12, 4), "bias_ih": (12,), "bias_hh": (12,)}
    memory = Layer("gru", {}, {k: torch.randn(s, generator=rng) for k, s in shapes.items()})
    head = {"weight": torch.randn(2, 4, generator=rng), "bias": torch.zeros(2)}
    return flat_network((memory, Layer("linear", {}, head)), 10, Output(kind="mean", **BOUNDS))


def player(made):
    return MemoryPartner(made, "partner")


def scripted(name):
    return load_partner(PartnerSpec(name, 0, extra={"uid": "partner"}))


MAKERS = (
    *(lambda seed=seed: player(network(seed)) for seed in range(5)),
    lambda: player(network(9, hidden=8)),  # of another shape
    lambda: player(remembering(1)),
    lambda: player(remembering(2)),
    lambda: scripted("crossing_wanderer"),
    lambda: scripted("crossing_goal_seeker"),
)


def seen(states):
    return {"agent": {"partner": {"state": states}}}


def pool_of(makers=MAKERS, rows=40, space=None):
    pool = PartnerPool([make() for make in makers], rows=rows)
    pool.bind(Box(-1, 1, (2,), np.float32) if space is None else space)
    return pool


def alone(make, states, seed, space, **how):
    """Return what a partner does in one environment."""
    one = make()
    one.bind(space)
    one.reset(seed=seed)
    return np.stack([one.act(seen(state), **how) for state in states])


@pytest.mark.parametrize("deterministic", [True, False])
def test_every_row_plays_its_member_as_one_environment_does(deterministic):
    pool, space = pool_of(), Box(-1, 1, (2,), np.float32)
    chosen = [row % len(MAKERS) for row in range(40)]
    pool.begin(range(40), chosen, range(100, 140))
    steps = [STATES, STATES[::-1].copy(), STATES + 1]
    played = np.stack([pool.act(seen(s), deterministic=deterministic) for s in steps])
    for row, member in enumerate(chosen):
        own = [step[row] for step in steps]
        told = alone(MAKERS[member], own, 100 + row, space, deterministic=deterministic)
        np.testing.assert_allclose(played[:, row], told, atol=1e-6)


def test_row_that_begins_anew_forgets_and_the_others_go_on():
    pool, space = pool_of(rows=3), Box(-1, 1, (2,), np.float32)
    pool.begin(range(3), [6, 7, 8], [0, 1, 2])
    for step in range(4):
        pool.act(seen(STATES[step : step + 3]))
    pool.begin([1], [7], [50])
    last = pool.act(seen(STATES[4:7]))
    fresh = alone(MAKERS[7], [STATES[5]], 50, space)
    gone_on = alone(MAKERS[6], STATES[[0, 1, 2, 3, 4]], 0, space)
    np.testing.assert_allclose(last[1], fresh[0], atol=1e-6)
    np.testing.assert_allclose(last[0], gone_on[-1], atol=1e-6)


@given(rows=st.lists(st.integers(0, 39), min_size=1, max_size=40, unique=True))
@settings(max_examples=25)
def test_answer_of_a_row_does_not_depend_on_who_else_is_asked(rows):
    who = np.arange(40) % 5
    stack = PolicyStack([network(seed) for seed in range(5)])
    whole = stack.act(STATES, who)
    assert np.array_equal(stack.act(STATES[rows], who[rows]), whole[rows])


def test_choices_are_numbers_within_the_space():
    makers = [lambda seed=seed: player(network(seed, 5, **CHOICES)) for seed in range(4)]
    pool = pool_of(makers, space=Discrete(5))
    pool.begin(range(40), [row % 4 for row in range(40)], range(40))
    told = pool.act(seen(STATES))
    assert told.shape == (40, 1)
    alone_told = [network(row % 4, 5, **CHOICES).act(STATES[row : row + 1]) for row in range(40)]
    assert told[:, 0].tolist() == np.concatenate(alone_told).tolist()


def test_policies_of_other_shapes_are_not_stacked_together():
    keys = {stack_key(network(0)), stack_key(network(0, hidden=8))}
    assert len(keys) == 2
    assert stack_key(network(0)) == stack_key(network(1))
    assert stack_key(remembering(0)) is None


def test_weights_changed_after_loading_are_refused_when_an_episode_begins(monkeypatch):
    pool = pool_of(MAKERS[:2], rows=2)
    pool.begin([0, 1], [0, 1], [0, 1])
    monkeypatch.setattr(PolicyStack, "digest", lambda stack, policy: "0" * 64)
    with pytest.raises(IntegrityError, match="pool member 1: expected frozen weights"):
        pool.begin([0], [1], [5])


def test_partner_that_knows_no_rows_has_a_copy_for_each():
    class Counting:
        """Counts its steps."""

        def __init__(self, spec):
            self.spec, self.steps = spec, 0

        def reset(self, *, seed=None):
            self.steps = seed

        def act(self, obs, *, deterministic=True):
            self.steps += 1
            return np.full(2, self.steps, np.float32) + obs["agent"]["partner"]["state"][0]

    pool = PartnerPool([Counting(PartnerSpec("x", 0))], rows=2)
    pool.begin([0, 1], [0, 0], [10, 20])
    zeros = seen(np.zeros((2, 10), np.float32))
    pool.act(zeros)
    pool.begin([0], [0], [30])
    assert pool.act(zeros)[:, 0].tolist() == [31.0, 22.0]


def test_states_of_another_length_are_refused():
    pool = pool_of(MAKERS[:2], rows=2)
    pool.begin([0, 1], [0, 1], [0, 1])
    with pytest.raises(InputError, match="expected length 10"):
        pool.act(seen(np.zeros((2, 11), np.float32)))


def test_pool_of_nobody_is_refused():
    with pytest.raises(InputError, match="at least one member"):
        PartnerPool([], rows=1)
