import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.partners import ChunkedPolicyPartner, PartnerSpec

OBS = {"agent": {"arm": {"state": np.zeros(3)}}}


class Counter(ChunkedPolicyPartner):
    """Plans 100 p, 100 p + 1, ... in plan p = 1, 2, ...; infinite in the plans of ``broken``."""

    chunk = 4
    broken = ()
    made = 0

    def plan(self, channels, *, rng, deterministic):
        self.made += 1
        actions = np.arange(self.chunk)[:, None] + 100.0 * self.made
        actions = actions + 0.0 * channels["state"][:2]
        if not deterministic:
            actions = actions + rng.normal(size=2)
        return np.where(self.made in self.broken, np.inf, actions)


def counter(cls=Counter, **options):
    return cls(PartnerSpec("counter", 0, extra={"uid": "arm", **options}))


def played(partner, ticks):
    return [float(partner.act(OBS)[0]) for _ in range(ticks)]


def test_chunk_is_played_to_its_end_and_then_planned_anew():
    partner = counter()
    assert played(partner, 6) == [100, 101, 102, 103, 200, 201]
    assert partner.counts.plans == 2


def test_slow_policy_holds_each_action_for_whole_ticks():
    partner = counter(control_hz="20", policy_hz="8")  # ceil(20 / 8) = 3
    assert partner.hold_steps == 3
    assert played(partner, 7) == [100, 100, 100, 101, 101, 101, 102]
    exact = counter(control_hz="0.3", policy_hz="0.1")  # 0.3 / 0.1 = 2.9999999999999996
    assert exact.hold_steps == 3


def test_early_plan_replaces_the_rest_of_the_chunk():
    assert played(counter(replan_steps="2"), 5) == [100, 101, 200, 201, 300]


def test_plan_takes_effect_after_its_latency_and_the_one_before_goes_on():
    partner = counter(replan_steps="2", latency_ticks="1")
    # Plans of ticks 0, 2, 4 take effect at ticks 1, 3, 5; nothing speaks at tick 0.
    assert played(partner, 6) == [0, 100, 101, 200, 201, 300]
    assert partner.counts.held_ticks == 1
    assert partner.action_age() == 1
    partner.act(OBS)
    assert partner.action_age() == 2


def test_latency_beyond_the_chunk_leaves_gaps_of_safe_hold():
    partner = counter(latency_ticks="2")
    partner.chunk = 2
    assert played(partner, 6) == [0, 0, 100, 101, 200, 201]
    late = counter(latency_ticks="1")
    late.chunk = 1
    late.act(OBS)
    assert late.action_age() is None


def test_ensemble_weighs_the_plans_in_effect_from_the_oldest_on():
    m = 0.5
    partner = counter(replan_steps="1", ensemble=str(m))
    first, second, third = played(partner, 3)
    w1, w2 = np.exp(-m), np.exp(-2 * m)
    assert first == 100
    assert second == pytest.approx((101 + 200 * w1) / (1 + w1))
    assert third == pytest.approx((102 + 201 * w1 + 300 * w2) / (1 + w1 + w2))
    played(partner, 1)
    # A plan that has run out is out: four live plans, the oldest of which is the second.
    weights = np.exp(-m * np.arange(4))
    expected = np.array([203, 302, 401, 500]) @ weights / weights.sum()
    assert played(partner, 1) == [pytest.approx(expected, rel=1e-6)]


def test_plan_with_infinite_numbers_is_a_safe_hold_until_the_next():
    partner = counter(replan_steps="2")
    partner.broken = (2,)
    assert played(partner, 6) == [100, 101, 0, 0, 300, 301]
    assert (partner.counts.not_finite, partner.counts.held_ticks) == (1, 2)


def test_unusable_plan_ends_the_ones_before_it_where_it_would_have_begun():
    partner = counter(replan_steps="2", latency_ticks="1")
    partner.broken = (3,)  # made at tick 4; the second one, of tick 2, began at tick 3
    assert played(partner, 8) == [0, 100, 101, 200, 201, 0, 0, 400]
    held = counter(replan_steps="2", latency_ticks="1", control_hz="20")  # the same, each twice
    held.broken = (3,)
    twice = [100, 100, 101, 101, 200, 200, 201, 201]
    assert played(held, 14) == [0, *twice, 0, 0, 0, 0, 400]


def test_plan_that_comes_too_late_is_not_used():
    partner = counter(max_latency_ms="1e-9")
    assert played(partner, 4) == [0, 0, 0, 0]
    assert partner.counts.late == 1
    assert partner.counts.longest_ms > 0
    assert partner.longest_latency_ticks >= 1


def test_reset_forgets_the_chunk_and_a_row_restarts_alone():
    partner = counter()
    rows = {"agent": {"arm": {"state": np.zeros((2, 3))}}}
    assert partner.act(rows).tolist() == [[100, 100], [200, 200]]
    partner.reset_row(1, seed=0)
    assert partner.act(rows)[:, 0].tolist() == [101, 300]
    partner.reset(seed=0)
    assert partner.act(OBS)[0] == 400


def test_samples_come_from_the_rows_own_generators():
    partner = counter()
    rows = {"agent": {"arm": {"state": np.zeros((3, 3))}}}
    partner.reset(seed=5)
    drawn = partner.act(rows, deterministic=False) % 100
    partner.reset(seed=5)
    np.testing.assert_allclose(partner.act(OBS, deterministic=False) % 100, drawn[0], atol=1e-3)
    partner.reset_row(2, seed=5)
    third = partner.act(rows, deterministic=False)[2] % 100
    np.testing.assert_allclose(third, drawn[0], atol=1e-3)
    assert abs(drawn[1] - drawn[0]).max() > 1e-3


def test_images_without_a_state_tell_a_batch_by_their_rank():
    class Seer(Counter):
        def plan(self, channels, *, rng, deterministic):
            return channels["rgb"].mean(axis=(0, 1))[None]

    partner = counter(Seer)
    image = np.ones((2, 4, 3)) * [1, 2, 3]
    assert partner.act({"agent": {"arm": {"rgb": image}}}).tolist() == [1, 2, 3]
    batch = {"agent": {"arm": {"rgb": np.stack([image, 2 * image])}}}
    assert partner.act(batch).tolist() == [[1, 2, 3], [2, 4, 6]]


@pytest.mark.parametrize(
    "options",
    [
        {"replan_steps": "0"},
        {"latency_ticks": "-1"},
        {"control_hz": "0"},
        {"policy_hz": "fast"},
        {"ensemble": "-1"},
        {"horizon": "3"},
    ],
    ids=str,
)
def test_option_out_of_range_is_refused(options):
    (name,) = options
    with pytest.raises(ConfigurationError, match=name):
        counter(**options)


def test_missing_robot_or_malformed_plan_is_an_error_that_names_it():
    with pytest.raises(InputError, match="'uid'"):
        Counter(PartnerSpec("counter", 0))
    with pytest.raises(InputError, match="'arm'"):
        counter().act({"agent": {"leg": {"state": np.zeros(3)}}})

    class Flat(Counter):
        def plan(self, channels, *, rng, deterministic):
            return np.zeros(2)

    with pytest.raises(InputError, match=r"\(H, A\), got \(2,\)"):
        counter(Flat).act(OBS)
