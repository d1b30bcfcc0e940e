"""The verifier as a whole: it passes the real filter, and a broken one does not get past it."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import canonical_json
from cadenza.safety.filters import ego_constants
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.ego_nominals import EGO_NOMINALS
from cadenza.safety.verifier.guards import Answer, batched_guard
from cadenza.safety.verifier.run import verify

#: One partner, fresh and old packets: 6000 steps within a second or two.
ONE = VerifierConfig(
    steps=6000,
    dims=(2,),
    plants=("zoh",),
    dts=(0.05,),
    partners=(1,),
    delays=("none", "varying"),
    stationary=False,
    ego_nominals=("drive_at", "drive_at_shaken"),
)
SEVERAL = dataclasses.replace(ONE, partners=(3,), several_steps=3000)


def counts_of(config, make_guard=batched_guard):
    return verify(config, make_guard=make_guard).everything()


def test_filter_holds_against_one_partner():
    report = verify(ONE)
    counts = report.everything()
    assert report.holds
    assert report.failures == []
    assert counts.steps == 6000
    assert (counts.penetrated_steps, counts.unfiltered_steps, counts.missed_steps) == (0, 0, 0)
    assert (counts.infeasible_steps, counts.uncertified_steps) == (0, 0)
    assert counts.changed_steps > 1500  # the filter had work to do
    assert 0.0 <= counts.min_margin_m + 1e-9 < 1e-3  # and the opponents came all the way
    assert counts.compared_steps > 30
    assert counts.largest_difference <= 1e-10


#: (ego's and partner's accelerations, control steps): from usual to nearly equally strong.
SWITCHING = [
    (2.0, 0.7, (0.05, 0.02)),
    (5.0, 4.99, (0.3,)),
    (5.0, 4.8, (0.3, 0.1)),
    (20.0, 15.0, (0.3, 0.05)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ego", "partner", "dts"), SWITCHING)
def test_partner_that_switches_within_steps_neither_touches_nor_leaves_the_safe_set(
    ego, partner, dts
):
    config = dataclasses.replace(
        ONE,
        steps=250_000,  # a million in all
        dims=(2, 3),
        dts=dts,
        delays=("none",),
        ego_accel=ego,
        partner_accel=partner,
        ego_nominals=tuple(EGO_NOMINALS),
        compared_share=0.001,
    )
    report = verify(config)
    counts = report.everything()
    assert report.failures == []
    assert counts.steps >= 250_000
    assert (counts.penetrated_steps, counts.exited_steps, counts.uncertified_steps) == (0, 0, 0)
    assert counts.min_barrier >= -1e-10
    assert counts.min_barrier < 1e-9  # and they come all the way to its edge
    assert counts.changed_steps > 50_000


def test_filter_for_a_partner_that_holds_its_push_is_found_out(monkeypatch):
    """A long step against a weak authority; with kappa = 1 rows are too loose."""
    config = dataclasses.replace(
        ONE, dts=(0.3,), delays=("none",), ego_accel=5.0, partner_accel=4.99, compared_share=0.0
    )
    assert verify(config).holds
    real = ego_constants.pair_parameters
    monkeypatch.setattr(
        ego_constants,
        "pair_parameters",
        lambda *args, **kwargs: dataclasses.replace(real(*args, **kwargs), unheld_accel=0.0),
    )
    report = verify(config)
    assert not report.holds
    assert report.everything().missed_steps > 100


@pytest.mark.parametrize("contact_speed", [0.0, 0.25])
def test_passive_filter_is_hit_by_several_partners_but_never_faster_than_tolerated(contact_speed):
    config = dataclasses.replace(
        SEVERAL,
        several_steps=800,
        multi_partner="passive",
        contact_speed=contact_speed,
        compared_share=0.02,
    )
    report = verify(config)
    counts = report.several(3)
    assert report.failures == []
    assert counts.penetrated_episodes > 2
    assert (counts.fast_steps, counts.uncertified_steps) == (0, 0)
    assert counts.largest_contact_speed <= contact_speed + 1e-9
    assert counts.largest_contact_speed >= 0.8 * contact_speed  # and it uses that up
    assert counts.compared_steps > 5
    assert counts.largest_difference < 1e-8
    loose = verify(dataclasses.replace(config, contact_speed=0.0), make_guard=passing_at(0.3))
    assert any("faster in a contact than tolerated" in sentence for sentence in loose.failures)


def passing_at(contact_speed):
    """Return a passive filter that tolerates more than it says."""
    return lambda scenario, config: batched_guard(
        scenario, dataclasses.replace(config, contact_speed=contact_speed)
    )


def test_several_partners_get_in_but_never_past_the_filter():
    report = verify(SEVERAL)
    counts = report.several(3)
    assert report.holds
    assert counts.penetrated_episodes > 0
    assert counts.infeasible_steps > 0
    assert (counts.unfiltered_steps, counts.missed_steps) == (0, 0)


def test_standing_partner_is_approached_and_never_touched():
    config = dataclasses.replace(ONE, steps=100, stationary=True, dts=(0.05,))
    counts = verify(config).stationary()
    assert counts.penetrated_steps == 0
    assert counts.min_margin_m < 1e-3


def test_original_filter_drives_through_a_standing_partner_and_passes_unsafe_actions():
    config = dataclasses.replace(ONE, barrier="wae", compat="upstream", stationary=True)
    report = verify(config)
    assert not report.holds
    standing = report.stationary()
    assert standing.min_distance_m < 0.05  # through the middle; contact is at 0.4 m
    assert standing.unfiltered_steps > 0
    assert report.single_adversarial().penetrated_episodes > 30  # of 60
    assert any("unfiltered action was executed" in sentence for sentence in report.failures)


def ignoring_the_push(scenario, config):
    return batched_guard(dataclasses.replace(scenario, partner_accel=0.0), config)


def ignoring_the_age(scenario, config):
    guard = batched_guard(scenario, config)
    return lambda sight: guard(dataclasses.replace(sight, ages_s=np.zeros_like(sight.ages_s)))


def extrapolating_only(scenario, config):
    """Moves old packets on at constant velocity, but leaves no room for what it cannot know."""
    guard = batched_guard(scenario, config)

    def mutant(sight):
        moved = sight.positions + sight.velocities * sight.ages_s[..., None]
        return guard(
            dataclasses.replace(sight, positions=moved, ages_s=np.zeros_like(sight.ages_s))
        )

    return mutant


def flipping_the_closing_speed(scenario, config):
    guard = batched_guard(scenario, config)
    return lambda sight: guard(
        dataclasses.replace(
            sight,
            ego_velocity=sight.velocities[:, 0],
            velocities=sight.ego_velocity[:, None].copy(),
        )
    )


def flipping_the_action(scenario, config):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        changed = (answer.action != sight.nominal).any(axis=1, keepdims=True)
        return dataclasses.replace(answer, action=np.where(changed, -answer.action, answer.action))

    return mutant


def doing_nothing(scenario, config):
    def mutant(sight):
        fine = np.ones(len(sight.nominal), bool)
        return Answer(sight.nominal.copy(), fine, ~fine)

    return mutant


@pytest.mark.parametrize(
    "mutant",
    [
        ignoring_the_push,
        ignoring_the_age,
        extrapolating_only,
        flipping_the_closing_speed,
        flipping_the_action,
        doing_nothing,
    ],
)
def test_broken_filter_lets_the_partner_in_and_is_caught(mutant):
    report = verify(ONE, make_guard=mutant)
    assert not report.holds
    assert report.single_adversarial().penetrated_episodes > 0


def test_row_of_the_other_plant_is_caught():
    report = verify(dataclasses.replace(ONE, filter_plant="semi_implicit"))
    assert report.single_adversarial().penetrated_episodes > 0
    assert not report.holds
    # The row for zero-order hold covers both plants.
    config = dataclasses.replace(ONE, plants=("semi_implicit",), filter_plant="zoh")
    assert verify(config).holds


def test_filter_that_does_nothing_is_said_to_execute_unfiltered_actions():
    counts = counts_of(ONE, doing_nothing)
    assert counts.unfiltered_steps > 100
    assert counts.missed_steps == 0  # each step is counted once
    assert counts.disagreements > 0


def passing_the_nominal_when_infeasible(scenario, config):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        action = np.where(answer.solved[:, None], answer.action, sight.nominal)
        return dataclasses.replace(answer, action=action)

    return mutant


def test_nominal_action_after_a_failed_solve_is_caught_with_several_partners():
    config = dataclasses.replace(SEVERAL, compared_share=0.0)
    counts = counts_of(config, passing_the_nominal_when_infeasible)
    assert counts.unfiltered_steps > 0
    assert counts.compared_steps == 0
    assert not verify(config, make_guard=passing_the_nominal_when_infeasible).holds


def halving_the_retreat(scenario, config):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        action = np.where(answer.solved[:, None], answer.action, 0.5 * answer.action)
        return dataclasses.replace(answer, action=action)

    return mutant


def test_action_that_serves_the_most_urgent_partner_too_little_is_caught():
    counts = counts_of(dataclasses.replace(SEVERAL, compared_share=0.0), halving_the_retreat)
    assert counts.missed_steps > 0


def test_filter_is_not_held_to_what_old_packets_cannot_tell_it():
    # Sixteen partners push the ego out of the safe set; from there on a nominal action may meet
    # the rows of the packets and yet miss a condition of the true state.
    config = dataclasses.replace(
        SEVERAL,
        several_steps=300,
        partners=(16,),
        dims=(3,),
        plants=("semi_implicit",),
        several_delays=("fixed",),
        max_age_s=0.07,
        margin_m=1e-3,
        ego_nominals=VerifierConfig().ego_nominals,
    )
    counts = counts_of(config)
    assert counts.uncertified_steps > 0
    assert counts.unfiltered_steps == 0


def leaving_the_box(scenario, config):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        return dataclasses.replace(answer, action=answer.action * 1.01)

    return mutant


def test_action_outside_the_box_is_caught():
    config = dataclasses.replace(ONE, compared_share=0.0, delays=("none",))
    assert counts_of(config, leaving_the_box).missed_steps > 0


def lying_about_the_solve(scenario, config):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        return dataclasses.replace(answer, solved=~answer.solved)

    return mutant


def test_verdict_that_differs_from_the_single_filter_is_a_disagreement():
    report = verify(ONE, make_guard=lying_about_the_solve)
    counts = report.everything()
    assert counts.disagreements == counts.compared_steps > 0
    assert counts.largest_difference == np.inf
    assert any("whether the rows can be met" in sentence for sentence in report.failures)


def slightly_off(scenario, config):
    guard = batched_guard(scenario, config)

    def mutant(sight):
        answer = guard(sight)
        return dataclasses.replace(answer, action=answer.action + 1e-9)

    return mutant


def test_difference_of_a_billionth_is_a_disagreement():
    counts = counts_of(ONE, slightly_off)
    assert counts.disagreements > 0
    assert counts.largest_difference == pytest.approx(1e-9, rel=1e-3)


def test_equal_seeds_give_equal_bytes_and_other_seeds_others():
    small = dataclasses.replace(ONE, steps=2000)
    first = verify(small).to_bytes()
    assert verify(small).to_bytes() == first
    assert verify(dataclasses.replace(small, seed=1)).to_bytes() != first


def test_age_that_leaves_no_authority_is_refused_before_anything_is_played():
    played = []
    config = dataclasses.replace(ONE, max_age_s=5.0)
    with pytest.raises(ConfigurationError, match="lower max_age_s or partner_accel"):
        verify(config, lambda *report: played.append(report))
    assert played == []


def test_large_scenarios_are_played_in_batches_and_counted_once(monkeypatch):
    whole = counts_of(dataclasses.replace(ONE, delays=("none",)))
    monkeypatch.setattr("cadenza.safety.verifier.simulation._BATCH_STEPS", 1000)
    parts = counts_of(dataclasses.replace(ONE, delays=("none",)))
    assert (parts.episodes, parts.steps) == (whole.episodes, whole.steps) == (60, 6000)
    assert parts.penetrated_steps == 0


def test_progress_ends_at_the_number_of_steps():
    reports = []
    config = dataclasses.replace(ONE, steps=1000)
    verify(config, lambda done, total, name: reports.append((done, total, name)))
    assert reports[-1][0] == reports[-1][1] == 1000
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    assert {name for _, _, name in reports} == {
        "adversarial-1p-2d-zoh-dt0.05-none",
        "adversarial-1p-2d-zoh-dt0.05-varying",
    }


def test_saved_report_carries_its_hash_origin_and_picture(tmp_path):
    report = verify(dataclasses.replace(ONE, steps=1000))
    path, picture = report.save(tmp_path / "new")
    stored = json.loads(path.read_bytes())
    claimed = stored.pop("content_hash")
    assert hashlib.sha256(canonical_json(stored)).hexdigest() == claimed
    assert stored["holds"] is True
    assert stored["config"]["steps"] == 1000
    assert stored["origin"]["seed"] == 0
    assert stored["origin"]["config_fingerprint"] == report.config.fingerprint()
    assert stored["totals"]["one_partner_adversarial"]["steps"] == 1000
    assert stored["worst_episode"]["min_distance_m"] == report.worst.min_distance
    assert sum(played for _, played in stored["scenarios"][0]["by_adversary"].values()) == 5
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, picture.name}
