"""Golden values of the generalization gap, by hand."""

import pytest

from cadenza.evaluation.generalization import ALL_UNSEEN, generalization_gap
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.paired import success_of

SEEN = {"mate": True, "pal": True, "odd": False, "mad": False, "sly": False}
FAMILIES = {"mate": "own", "pal": "own", "odd": "strange", "mad": "strange", "sly": "cunning"}


def episode(partner, seed, start, success):
    return EpisodeResult(
        seed=seed, episode_idx=0, initial_state_seed=start, partner=partner, success=success
    )


def gap(rows, **changes):
    episodes = [episode(*row) for row in rows]
    settings = {"metric": success_of, "seen": SEEN, "families": FAMILIES, **changes}
    return generalization_gap(episodes, **settings)


def test_gap_is_the_mean_difference_of_each_start_with_seeds_as_clusters():
    rows = [
        # start 7 of seed 0: seen (1 + 0) / 2, strange 0, so 0.5
        ("mate", 0, 7, True),
        ("pal", 0, 7, False),
        ("odd", 0, 7, False),
        # start 8 of seed 0: seen 1, strange (1 + 0) / 2, so 0.5
        ("mate", 0, 8, True),
        ("odd", 0, 8, True),
        ("mad", 0, 8, False),
        # start 7 of seed 1: seen 1, strange 0, so 1
        ("mate", 1, 7, True),
        ("odd", 1, 7, False),
    ]
    found = gap(rows)["strange"]
    # seed means 0.5 and 1: mean 0.75, t(1) = 12.706, half width 12.706 * 0.25, cut at the bounds
    assert found.value == pytest.approx(0.75)
    assert (found.n, found.n_clusters) == (3, 2)
    assert found.low == pytest.approx(0.75 - 12.7062 * 0.25, abs=1e-3)
    assert gap(rows, bounds=(-1.0, 1.0))["strange"].high == 1.0


def test_gap_pairs_starts_and_leaves_the_others_out():
    rows = [
        ("mate", 0, 1, True),
        ("odd", 0, 1, False),
        ("odd", 0, 2, True),  # nobody seen met this start
        ("mate", 1, 3, True),  # nobody unseen did
        ("sly", 1, 4, True),
        ("elsewhere", 0, 1, False),  # nobody knows whether it was seen
    ]
    found = gap(rows)
    assert (found["strange"].value, found["strange"].n) == (1.0, 1)
    assert "cunning" not in found
    assert found[ALL_UNSEEN].value == 1.0


def test_all_unseen_weighs_partners_alike_within_a_start():
    rows = [("mate", 0, 1, True), ("odd", 0, 1, True), ("mad", 0, 1, True), ("sly", 0, 1, False)]
    found = gap(rows)
    assert list(found) == ["cunning", "strange", ALL_UNSEEN]
    assert [e.value for e in found.values()] == pytest.approx([1.0, 0.0, 1.0 - 2.0 / 3.0])
