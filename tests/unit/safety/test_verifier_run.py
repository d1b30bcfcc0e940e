"""The verifier as a whole: it passes the real filter, and a broken one does not get past it."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import canonical_json
from cadenza.safety import authority
from cadenza.safety.verifier.adversaries import EGO_NOMINALS
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.guards import Answer, batched_guard
from cadenza.safety.verifier.run import verify
from tests.campaigns import size
from tests.unit.safety.verifications import ONE, verified

LATE = dataclasses.replace(ONE, delays=("varying",))
SEVERAL = dataclasses.replace(ONE, partners=(3,), several_steps=1500)


def test_filter_holds_against_one_partner():
    report = verified(ONE)
    counts = report.everything()
    assert report.holds
    assert report.failures == []
    assert counts.steps == 4000
    assert (counts.penetrated_steps, counts.unfiltered_steps, counts.missed_steps) == (0, 0, 0)
    assert (counts.infeasible_steps, counts.uncertified_steps) == (0, 0)
    assert counts.changed_steps > 1000  # the filter had work to do
    assert 0.0 <= counts.min_margin_m + 1e-9 < 1e-3  # and the opponents came all the way
    assert counts.compared_steps > 20
    assert counts.largest_difference <= 1e-10


#: (ego's and partner's accelerations, control steps): from usual to nearly equally strong.
SWITCHING = [
    (2.0, 0.7, (0.05, 0.02)),
    (5.0, 4.99, (0.3,)),
    (5.0, 4.8, (0.3, 0.1)),
    (20.0, 15.0, (0.3, 0.05)),
]


@pytest.mark.parametrize(("ego", "partner", "dts"), SWITCHING[:: size(2, 1)])
def test_partner_that_switches_within_steps_neither_touches_nor_leaves_the_safe_set(
    ego, partner, dts
):
    steps = size(15_000, 250_000)  # a million in all
    config = dataclasses.replace(
        ONE,
        steps=steps,
        dims=size((2,), (2, 3)),
        dts=size(dts[:1], dts),
        delays=("none",),
        ego_accel=ego,
        partner_accel=partner,
        ego_nominals=tuple(EGO_NOMINALS),
        pieces=VerifierConfig().pieces,
        compared_share=0.001,
    )
    report = verify(config)
    counts = report.everything()
    assert report.failures == []
    assert counts.steps >= steps
    assert (counts.penetrated_steps, counts.exited_steps, counts.uncertified_steps) == (0, 0, 0)
    assert counts.min_barrier >= -1e-10
    assert counts.min_barrier < 1e-9  # and they come all the way to its edge
    assert counts.changed_steps > steps / 5


#: What is measured is 5 mm and 0.02 m/s off, in the way that serves the partner.
MEASURED = dataclasses.replace(
    ONE,
    steps=size(24_000, 1_000_000),
    dims=(2, 3),
    dts=size((0.05,), (0.1, 0.05, 0.02)),
    delays=("none", "fixed", "varying"),
    pieces=VerifierConfig().pieces,
    position_error=0.005,
    velocity_error=0.02,
    compared_share=0.005,
)


def test_partner_that_is_measured_wrongly_is_not_touched_if_the_errors_are_stated():
    report = verify(MEASURED)
    counts = report.everything()
    assert report.failures == []
    assert counts.steps >= MEASURED.steps
    assert (counts.penetrated_steps, counts.uncertified_steps, counts.infeasible_steps) == (0, 0, 0)
    assert counts.changed_steps > MEASURED.steps / 5
    assert counts.min_margin_m < 1e-6  # and the partners come all the way
    assert counts.compared_steps > 50
    assert counts.largest_difference <= 1e-10


@pytest.mark.parametrize("told", [{"position_error": 0.0}, {"velocity_error": 0.0}])
def test_filter_that_is_not_told_of_one_of_its_errors_is_found_out(told):
    config = dataclasses.replace(MEASURED, steps=8000, delays=("none",), compared_share=0.0)
    report = verify(
        config,
        make_guard=lambda scenario, told_of: batched_guard(
            scenario, dataclasses.replace(told_of, **told)
        ),
    )
    assert report.everything().penetrated_episodes > 0
    assert not report.holds


def test_filter_for_a_partner_that_holds_its_push_is_found_out(monkeypatch):
    """A long step against a weak authority; with kappa = 1 rows are too loose."""
    config = dataclasses.replace(
        ONE, dts=(0.3,), delays=("none",), ego_accel=5.0, partner_accel=4.99, compared_share=0.0
    )
    assert verify(config).holds
    real = authority.pair_parameters
    monkeypatch.setattr(
        authority,
        "pair_parameters",
        lambda *args, **kwargs: dataclasses.replace(real(*args, **kwargs), unheld_accel=0.0),
    )
    report = verify(config)
    assert not report.holds
    assert report.everything().missed_steps > 100


@pytest.mark.parametrize("contact_speed", size([0.25], [0.0, 0.25]))
def test_passive_filter_is_hit_by_several_partners_but_never_faster_than_tolerated(contact_speed):
    config = dataclasses.replace(
        SEVERAL,
        several_steps=size(400, 800),
        multi_partner="passive",
        contact_speed=contact_speed,
        compared_share=0.02,
    )
    report = verify(config)
    counts = report.several(3)
    assert report.failures == []
    assert counts.penetrated_episodes > 0
    assert (counts.fast_steps, counts.uncertified_steps) == (0, 0)
    assert counts.largest_contact_speed <= contact_speed + 1e-9
    assert counts.largest_contact_speed >= 0.8 * contact_speed  # and it uses that up
    assert counts.compared_steps > 2
    assert counts.largest_difference < 1e-8
    still = dataclasses.replace(config, contact_speed=0.0, compared_share=0.0)
    loose = verify(still, make_guard=passing_at(0.3))
    assert any("faster in a contact than tolerated" in sentence for sentence in loose.failures)


def passing_at(contact_speed):
    """Return a passive filter that tolerates more than it says."""
    return lambda scenario, config: batched_guard(
        scenario, dataclasses.replace(config, contact_speed=contact_speed)
    )


def changing_sight(change):
    """Return a filter that sees the scene as ``change`` of the sight has it."""

    def factory(scenario, config):
        guard = batched_guard(scenario, config)
        return lambda sight: guard(dataclasses.replace(sight, **change(sight)))

    return factory


def changing_answer(change):
    """Return a filter that answers what ``change`` makes of sight and answer."""

    def factory(scenario, config):
        guard = batched_guard(scenario, config)

        def mutant(sight):
            answer = guard(sight)
            return dataclasses.replace(answer, **change(sight, answer))

        return mutant

    return factory


def without_age(sight):
    return {"ages_s": np.zeros_like(sight.ages_s)}


def extrapolated(sight):
    """Old packets moved on at constant velocity, no room for what it cannot know."""
    moved = sight.positions + sight.velocities * sight.ages_s[..., None]
    return {"positions": moved} | without_age(sight)


def swapped_velocities(sight):
    return {
        "ego_velocity": sight.velocities[:, 0],
        "velocities": sight.ego_velocity[:, None].copy(),
    }


def turned_round(sight, answer):
    changed = (answer.action != sight.nominal).any(axis=1, keepdims=True)
    return {"action": np.where(changed, -answer.action, answer.action)}


def ignoring_the_push(scenario, config):
    return batched_guard(dataclasses.replace(scenario, partner_accel=0.0), config)


def doing_nothing(scenario, config):
    def mutant(sight):
        fine = np.ones(len(sight.nominal), bool)
        return Answer(sight.nominal.copy(), fine, ~fine)

    return mutant


MUTANTS = {
    "ignores the push": ignoring_the_push,
    "ignores the age": changing_sight(without_age),
    "extrapolates only": changing_sight(extrapolated),
    "flips the closing speed": changing_sight(swapped_velocities),
    "flips the action": changing_answer(turned_round),
    "does nothing": doing_nothing,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_filter_lets_the_partner_in_and_is_caught(mutant):
    report = verified(LATE, make_guard=MUTANTS[mutant])
    assert not report.holds
    assert report.single_adversarial().penetrated_episodes > 0


def test_row_of_the_other_plant_is_caught():
    report = verified(dataclasses.replace(LATE, filter_plant="semi_implicit"))
    assert report.single_adversarial().penetrated_episodes > 0
    assert not report.holds
    # The row for zero-order hold covers both plants.
    assert verified(dataclasses.replace(LATE, plants=("semi_implicit",), filter_plant="zoh")).holds


def test_filter_that_does_nothing_is_said_to_execute_unfiltered_actions():
    counts = verified(LATE, make_guard=doing_nothing).everything()
    assert counts.unfiltered_steps > 100
    assert counts.missed_steps == 0  # each step is counted once
    assert counts.disagreements > 0


def test_several_partners_get_in_but_never_past_the_filter():
    report = verified(SEVERAL)
    counts = report.several(3)
    assert report.holds
    assert counts.penetrated_episodes > 0
    assert counts.infeasible_steps > 0
    assert (counts.unfiltered_steps, counts.missed_steps) == (0, 0)


def unmet(share):
    """Return a change that executes ``share`` of the retreat, else nominal, where rows conflict."""

    def change(sight, answer):
        other = sight.nominal if share is None else share * answer.action
        return {"action": np.where(answer.solved[:, None], answer.action, other)}

    return changing_answer(change)


@pytest.mark.parametrize(
    ("mutant", "config", "wrong"),
    [
        (unmet(None), SEVERAL, "unfiltered_steps"),  # the nominal after a failed solve
        (unmet(0.5), SEVERAL, "missed_steps"),  # the most urgent partner gets too little
        (
            changing_answer(lambda _, a: {"action": 1.01 * a.action}),
            LATE,
            "missed_steps",
        ),  # the box
    ],
    ids=["nominal", "half the retreat", "outside the box"],
)
def test_action_that_serves_nobody_as_it_must_is_caught(mutant, config, wrong):
    report = verified(dataclasses.replace(config, compared_share=0.0), make_guard=mutant)
    assert getattr(report.everything(), wrong) > 0
    assert report.everything().compared_steps == 0
    assert not report.holds


def test_verdict_that_differs_from_the_single_filter_is_a_disagreement():
    report = verified(LATE, make_guard=changing_answer(lambda _, a: {"solved": ~a.solved}))
    counts = report.everything()
    assert counts.disagreements == counts.compared_steps > 0
    assert counts.largest_difference == np.inf
    assert any("whether the rows can be met" in sentence for sentence in report.failures)


def test_difference_of_a_billionth_is_a_disagreement():
    slightly_off = changing_answer(lambda _, answer: {"action": answer.action + 1e-9})
    counts = verified(LATE, make_guard=slightly_off).everything()
    assert counts.disagreements > 0
    assert counts.largest_difference == pytest.approx(1e-9, rel=1e-3)


def test_original_filter_drives_through_a_standing_partner_and_ours_never_touches_it():
    config = dataclasses.replace(ONE, steps=1000, delays=("none",), stationary=True)
    ours = verified(config).stationary()
    assert ours.penetrated_steps == 0
    assert ours.min_margin_m < 1e-3  # approached all the same
    report = verified(dataclasses.replace(config, barrier="wae", compat="upstream"))
    assert not report.holds
    standing = report.stationary()
    assert standing.min_distance_m < 0.05  # through the middle; contact is at 0.4 m
    assert standing.unfiltered_steps > 0
    assert report.single_adversarial().penetrated_episodes > 3  # of 10
    assert any("unfiltered action was executed" in sentence for sentence in report.failures)


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
    counts = verified(config).everything()
    assert counts.uncertified_steps > 0
    assert counts.unfiltered_steps == 0


def test_equal_seeds_give_equal_bytes_and_other_seeds_others():
    small = dataclasses.replace(ONE, steps=200, delays=("none",), compared_share=0.01)
    first = verify(small).to_bytes()
    assert verify(small).to_bytes() == first
    assert verify(dataclasses.replace(small, seed=1)).to_bytes() != first


def test_age_that_leaves_no_authority_is_refused_before_anything_is_played():
    played = []
    with pytest.raises(ConfigurationError, match="lower max_age_s or partner_accel"):
        verify(dataclasses.replace(ONE, max_age_s=5.0), lambda *report: played.append(report))
    assert played == []


def test_large_scenarios_are_played_in_batches_and_counted_once(monkeypatch):
    monkeypatch.setattr("cadenza.safety.verifier.run._BATCH_STEPS", 1000)
    parts = verify(dataclasses.replace(ONE, steps=2500, delays=("none",))).everything()
    assert (parts.episodes, parts.steps, parts.penetrated_steps) == (25, 2500, 0)


def test_progress_ends_at_the_number_of_steps():
    reports = []
    config = dataclasses.replace(ONE, steps=400, compared_share=0.0)
    verify(config, lambda done, total, name: reports.append((done, total, name)))
    assert reports[-1][0] == reports[-1][1] == 400
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    assert {name for _, _, name in reports} == {
        "adversarial-1p-2d-zoh-dt0.05-none",
        "adversarial-1p-2d-zoh-dt0.05-varying",
    }


def test_saved_report_carries_its_hash_origin_and_picture(tmp_path):
    report = verified(ONE)
    path, picture = report.save(tmp_path / "new")
    stored = json.loads(path.read_bytes())
    claimed = stored.pop("content_hash")
    assert hashlib.sha256(canonical_json(stored)).hexdigest() == claimed
    assert stored["holds"] is True
    assert stored["config"]["steps"] == 4000
    assert stored["origin"]["seed"] == 0
    assert stored["origin"]["config_fingerprint"] == report.config.fingerprint()
    assert stored["totals"]["one_partner_adversarial"]["steps"] == 4000
    assert stored["worst_episode"]["min_distance_m"] == report.worst.nearest.min()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, picture.name}
