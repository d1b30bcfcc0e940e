"""A partner on a worse body: what is late, lost, held or cut, one environment and many."""

import numpy as np
import pytest
from gymnasium import spaces

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.partners import PartnerSpec, load_partner
from cadenza.partners.interface import PartnerBase
from cadenza.partners.registry import isolated_registry, register_partner


@pytest.fixture(autouse=True)
def _counting_partner():
    """A partner whose k-th action of an episode is (k, -k), per row."""
    with isolated_registry():

        @register_partner("counts")
        class Counts(PartnerBase):
            def __init__(self, spec):
                super().__init__(spec)
                self._counts = np.zeros(0)

            def reset(self, *, seed=None):
                self._counts = np.zeros(0)

            def reset_row(self, row, *, seed):
                self._counts[row] = 0

            def act(self, obs, *, deterministic=True):
                rows = np.atleast_2d(obs["agent"]["partner"]["state"])
                if len(self._counts) != len(rows):
                    self._counts = np.zeros(len(rows))
                self._counts += 1
                actions = np.stack([self._counts, -self._counts], axis=-1).astype(np.float32)
                return actions if obs["agent"]["partner"]["state"].ndim == 2 else actions[0]

        yield


def varied(bound=100.0, **options):
    extra = {"uid": "partner", "partner": "counts", **{k: str(v) for k, v in options.items()}}
    partner = load_partner(PartnerSpec("varied_body", 0, extra=extra))
    partner.bind(spaces.Box(-bound, bound, (2,)))
    partner.reset(seed=1)
    return partner


def seen(rows=None):
    return {"agent": {"partner": {"state": np.zeros(3 if rows is None else (rows, 3))}}}


def played(partner, steps=8):
    return [float(partner.act(seen())[0]) for _ in range(steps)]


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"delay_steps": 3}, [0, 0, 0, 1, 2, 3, 4, 5]),
        ({"hold_steps": 3}, [1, 1, 1, 4, 4, 4, 7, 7]),
        ({"hold_steps": 2, "delay_steps": 1}, [0, 1, 1, 3, 3, 5, 5, 7]),
        ({"loss": 1.0}, [0] * 8),
        ({"reach": 0.05}, [1, 2, 3, 4, 5, 5, 5, 5]),
    ],
)
def test_action_is_late_held_lost_or_cut(options, done):
    assert played(varied(**options)) == done


def test_lost_decisions_leave_the_last_one_and_occur_as_often_as_said():
    partner = varied(bound=1e6, loss=0.3)
    done = np.array(played(partner, 4000))
    arrived = np.diff(done, prepend=0.0) > 0.0
    assert (done[arrived] == np.flatnonzero(arrived) + 1.0).all()
    assert arrived.mean() == pytest.approx(0.7, abs=0.03)
    partner.reset(seed=1)
    assert played(partner, 50) == done[:50].tolist()


def test_row_that_starts_anew_acts_as_a_single_environment_does():
    options = {"delay_steps": 2, "hold_steps": 2, "loss": 0.3}
    partner = varied(**options)
    for _ in range(5):
        partner.act(seen(3))
    partner.reset_row(1, seed=9)
    rows = [float(partner.act(seen(3))[1, 0]) for _ in range(12)]
    alone = varied(**options)
    alone.reset(seed=9)
    assert rows == played(alone, 12)


def test_intention_is_what_is_decided_and_leaves_nothing_underway():
    partner = varied(delay_steps=2, reach=0.02)
    assert [partner.intention(seen())[0] for _ in range(4)] == [1.0, 2.0, 2.0, 2.0]
    assert played(partner, 3) == [0.0, 0.0, 2.0]


def test_options_of_the_inner_partner_reach_it():
    inner = {"partner": "constant_action", "partner.value": "0.5"}
    partner = load_partner(PartnerSpec("varied_body", 0, extra={"uid": "partner", **inner}))
    partner.reset(seed=0)
    assert partner.act(seen()).tolist() == [0.5, 0.5]
    partner.bind(spaces.Box(-0.25, 0.25, (3,)))
    partner.reset(seed=0)
    assert partner.act(seen()).tolist() == [0.25] * 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"partner": "varied_body"}, "option 'partner'.*another partner"),
        ({"delay_steps": "1.5"}, "'delay_steps'.*whole number, got 1.5"),
        ({"hold_steps": "0"}, "'hold_steps'"),
        ({"delays": "1"}, "unknown option 'delays'.*did you mean 'delay_steps'"),
    ],
)
def test_wrong_options_are_refused(options, named):
    with pytest.raises(ConfigurationError, match=named):
        varied(**options)


def test_what_needs_an_action_space_says_so():
    extra = {"uid": "partner", "partner": "counts", "reach": "0.5"}
    partner = load_partner(PartnerSpec("varied_body", 0, extra=extra))
    partner.reset(seed=0)
    with pytest.raises(InputError, match=r"bind\(action_space\)"):
        partner.act(seen())
    with pytest.raises(InputError, match="expected a Box"):
        partner.bind(spaces.Discrete(3))
