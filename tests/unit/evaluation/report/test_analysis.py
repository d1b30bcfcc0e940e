from dataclasses import replace

import pytest

from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.render import excludes_zero, headline_tiles, verdict
from cadenza.evaluation.report.tables import (
    contact_table,
    difference_table,
    endings_table,
    filter_table,
    success_table,
)
from cadenza.evaluation.report.view import ConditionView, PartnerView, ReportView
from cadenza.evaluation.results import EpisodeResult


def episode(condition, partner, seed, index, **change) -> EpisodeResult:
    """Return a solved episode without contact; the filter acts on 10 of 100 steps."""
    values = {
        "success": True,
        "contact": False,
        "n_steps": 100,
        "episode_return": 2.0,
        "min_distance_m": 0.6,
        "interventions": 10 if condition == "on" else None,
        "intervention_mean": 0.5 if condition == "on" else None,
        "intervention_peak": 1.5 if condition == "on" else None,
        **change,
    }
    values.setdefault("truncated", not values["success"] and not values["contact"])
    return EpisodeResult(
        seed=seed,
        episode_idx=index,
        initial_state_seed=index,
        condition=condition,
        partner=partner,
        **values,
    )


def tiny_view(**change) -> ReportView:
    """Return 2 partners x 10 seeds x 2 episodes.

    Without the filter, episode 0 of the stranger ends in contact. With it, the stranger's episode
    1 is unsolved for seeds 0 to 4, and there the filter acts on 30 steps with mean 1.0.
    """
    episodes = []
    for seed in range(10):
        for index in range(2):
            episodes += [episode(c, "friend", seed, index) for c in ("on", "off")]
            hit = {"success": False, "contact": True, "min_distance_m": 0.39}
            unsolved = {"success": False, "interventions": 30, "intervention_mean": 1.0}
            slow = index == 1 and seed < 5
            episodes += [
                episode("on", "stranger", seed, index, **(unsolved if slow else {})),
                episode("off", "stranger", seed, index, **(hit if index == 0 else {})),
            ]
    values = {
        "title": "T",
        "task": "t@v1",
        "statements": (),
        "provenance": (),
        "verification": (),
        "conditions": (
            ConditionView(condition_id="on", label="guarded", filtered=True),
            ConditionView(condition_id="off", label="bare", filtered=False),
        ),
        "partners": (
            PartnerView(partner_id="friend", label="Friend", seen=True),
            PartnerView(partner_id="stranger", label="Stranger", seen=False),
        ),
        "episodes": tuple(episodes),
        "contact_distance_m": 0.4,
        **change,
    }
    return ReportView(**values)


def test_cells_count_what_happened():
    stranger = analyse(tiny_view()).partners[1]
    on, off = stranger.cells
    assert (on.n, on.n_contacts, on.success.value) == (20, 0, 0.75)
    assert (off.n, off.n_contacts, off.success.value) == (20, 10, 0.5)
    assert on.seed_success == (0.5,) * 5 + (1.0,) * 5
    assert off.distances.tolist() == [0.39] * 10 + [0.6] * 10
    assert (on.n_steps, off.intervention_share) == (2000, None)


def test_intervention_size_is_the_mean_over_changed_steps():
    on = analyse(tiny_view()).partners[1].cells[0]
    # 15 episodes with 10 steps of 0.5, 5 episodes with 30 steps of 1.0
    assert on.intervention_mean == pytest.approx((15 * 10 * 0.5 + 5 * 30 * 1.0) / (150 + 150))
    assert on.intervention_share.value == pytest.approx((15 * 0.1 + 5 * 0.3) / 20)
    assert on.intervention_peak == 1.5


def test_comparisons_are_filtered_minus_unfiltered():
    friend, stranger = analyse(tiny_view()).partners
    assert friend.comparisons["success"].difference.value == 0.0
    # starts: +1 on ten, -1 on five of twenty pairs
    assert stranger.comparisons["success"].difference.value == pytest.approx(5 / 20)
    assert stranger.comparisons["contact"].difference.value == pytest.approx(-10 / 20)
    assert stranger.comparisons["return"].difference.value == 0.0


@pytest.mark.parametrize("metric", ["success", "contact"])
@pytest.mark.parametrize("more", ["on", "off"])
def test_difference_of_rates_stays_within_one(metric, more):
    episodes = [
        episode(condition, partner, seed, 0, **{metric: condition == more and seed > 0})
        for condition in ("on", "off")
        for partner in ("friend", "stranger")
        for seed in range(3)
    ]
    stranger = analyse(tiny_view(episodes=tuple(episodes))).partners[1]
    difference = stranger.comparisons[metric].difference
    assert abs(difference.value) == pytest.approx(2 / 3)
    # Student's t of two degrees of freedom would reach 2.1.
    assert max(abs(difference.low), abs(difference.high)) == 1.0


def test_groups_appear_only_when_they_pool_something():
    view = tiny_view()
    assert analyse(view).groups == ()
    hunter = PartnerView(partner_id="hunter", label="Hunter", seen=False, leaves_way=False)
    groups = analyse(replace(view, partners=(*view.partners, hunter))).groups
    assert [g.label for g in groups] == ["All unseen"]
    extra = PartnerView(partner_id="extra", label="Extra", seen=False)
    stranger = PartnerView(partner_id="another", label="Another", seen=False)
    groups = analyse(replace(view, partners=(*view.partners, extra))).groups
    assert [g.label for g in groups] == ["All unseen"]
    everyone = (replace(view.partners[1], seen=True), view.partners[0], extra, hunter, stranger)
    groups = analyse(replace(view, partners=everyone)).groups
    assert [(g.label, g.note) for g in groups] == [
        ("All seen", "2\u00a0partners"),
        ("Unseen that leave a way", "2\u00a0partners"),
        ("All unseen", "3\u00a0partners"),
    ]


def test_unmatched_episodes_and_few_seeds_become_cautions():
    view = tiny_view()
    kept = tuple(e for e in view.episodes if e.seed < 4)[:-1]
    cautions = analyse(replace(view, episodes=kept)).cautions
    assert any(c.startswith("Stranger: 1 episodes have no counterpart") for c in cautions)
    assert "Only 4 seeds: the spread between seeds is badly known, use at least 10." in cautions
    assert len(set(cautions)) == len(cautions)
    assert analyse(view).cautions == ()


def test_return_without_spread_becomes_a_caution():
    cautions = analyse(tiny_view(has_success=False)).cautions
    assert "Friend: no interval, every observation is the same, so their spread is unknown." in (
        cautions
    )


def test_partner_that_was_not_played_has_empty_cells():
    view = tiny_view()
    absent = PartnerView(partner_id="absent", label="Absent", seen=False)
    numbers = analyse(replace(view, partners=(*view.partners, absent)))
    assert numbers.partners[2].cells == (None, None)
    assert numbers.partners[2].comparisons["success"].difference.value is None


def test_tiles_show_contacts_and_success():
    view = tiny_view()
    tiles = headline_tiles(view, analyse(view))
    shown = [(t.value.replace("\u00a0", " "), t.label, t.css) for t in tiles]
    assert shown == [
        ("0", "contacts guarded", "on"),
        ("10", "contacts bare", "off"),
        ("+12.5", "points: the filter's effect on success", "plain"),
        ("100.0 %", "solved with partners it trained with", "plain"),
        ("75.0 %", "solved with all unseen partners", "plain"),
    ]
    # 0 of 40 in ten seeds; independent episodes would give 1 - 0.025 ** (1 / 40) = 8.8 %
    assert "true rate at most 12.0\u00a0%" in tiles[0].detail
    # Five seeds gain 0 of 4 pairs, five 1 of 4: 12.5 +- t(0.975, 9) * 13.18 / sqrt(10) points.
    assert "40\u00a0pairs with all partners" in tiles[2].detail
    assert tiles[2].detail.endswith("[+3.1, +21.9] excludes zero")


def test_tiles_show_unseen_partners_with_and_without_those_that_may_leave_no_way():
    hunter = PartnerView(partner_id="hunter", label="Hunter", seen=False, leaves_way=False)
    view = tiny_view()
    caught = tuple(
        episode(c, "hunter", seed, 0, success=False) for seed in range(10) for c in ("on", "off")
    )
    hunted = replace(view, partners=(*view.partners, hunter), episodes=view.episodes + caught)
    tiles = {t.label: t for t in headline_tiles(hunted, analyse(hunted))}
    fair = tiles["solved with unseen partners that always leave a way"]
    every = tiles["solved with all unseen partners"]
    assert (fair.value, every.value) == ("75.0\u00a0%", "50.0\u00a0%")
    assert "20\u00a0episodes with 1\u00a0partner;" in fair.detail
    assert "30\u00a0episodes with 2\u00a0partners;" in every.detail
    assert "may block the way" in analyse(hunted).partners[2].note


def test_effect_of_a_filter_that_costs_success_is_red_and_named_in_the_verdict():
    view = tiny_view()
    on, off = (replace(c, filtered=not c.filtered) for c in view.conditions)
    turned = replace(view, conditions=(on, off))
    tile = headline_tiles(turned, analyse(turned))[2]
    assert (tile.value, tile.css) == ("−12.5", "bad")
    assert tile.detail.endswith("[−21.9, −3.1] excludes zero; red: below zero")
    sentence = verdict(turned, analyse(turned)).replace("\u00a0", " ")
    assert sentence == (
        "The ego touched someone in 0 of 40 episodes guarded and 10 of 40 episodes bare; bare, the "
        "share of episodes solved was 100.0 % with partners it trained with, 50.0 % with all "
        "unseen partners; from the same starts, it did better with the filter in 5 and worse in 10 "
        "of 40 pairs: a clear loss (−12.5 points; 95 % interval [−21.9, −3.1] excludes zero)."
    )


def test_verdict_calls_an_interval_around_zero_no_clear_change():
    view = tiny_view()
    few = replace(view, episodes=tuple(e for e in view.episodes if e.seed in (0, 1, 9)))
    sentence = verdict(few, analyse(few)).replace("\u00a0", " ")
    # 0, 0 and 1 of 4 pairs: 8.3 +- t(0.975, 2) * 14.4 / sqrt(3) points
    assert "no clear change (+8.3 points; 95 % interval [−27.5, +44.2] includes zero)." in sentence
    alone = replace(
        view,
        conditions=view.conditions[:1],
        episodes=tuple(e for e in view.episodes if e.condition == "on"),
    )
    assert verdict(alone, analyse(alone)).replace("\u00a0", " ") == (
        "The ego touched someone in 0 of 40 episodes guarded; guarded, the share of episodes "
        "solved was 100.0 % with partners it trained with, 75.0 % with all unseen partners."
    )
    assert verdict(replace(view, episodes=()), analyse(replace(view, episodes=()))) == ""
    one = replace(alone, compared="Method")  # whose label is its name, not a circumstance
    assert verdict(one, analyse(one)).replace("\u00a0", " ") == (
        "guarded touched someone in 0 of 40 episodes; guarded's share of episodes solved was "
        "100.0 % with partners it trained with, 75.0 % with all unseen partners."
    )
    assert headline_tiles(one, analyse(one))[0].label == "contacts of guarded"


def test_endings_split_time_outs_by_what_the_filter_did_and_show_time_to_goal():
    solved = [episode("on", "friend", s, 0, n_steps=20 * (s + 1)) for s in range(5)]
    late = [
        episode("on", "friend", s, 1, success=False, n_steps=200, interventions=acted)
        for s, acted in enumerate((0, 0, 1))
    ]
    bare = [episode("off", "friend", 0, 0, success=False, contact=True)]
    view = tiny_view(episodes=(*solved, *late, *bare), control_timestep_s=0.05)
    table = endings_table(view, analyse(view))
    rows = [tuple(cell.replace("\u00a0", " ") for cell in row) for row in table.rows]
    assert rows == [
        ("Friend", "guarded", "8", "5", "0", "3", "2", "1", "3.00 s", "2.00 to 4.00 s"),
        ("Friend", "bare", "1", "0", "1", "0", "–", "–", "–", "–"),
    ]
    unrecorded = tuple(e.model_copy(update={"truncated": None}) for e in view.episodes)
    older = replace(view, episodes=unrecorded, control_timestep_s=None)
    assert endings_table(older, analyse(older)) is None


def test_tables_give_counts_rates_and_paired_changes_of_contacts():
    view = tiny_view()
    table = contact_table(view, analyse(view))
    assert [row[0] for row in table.rows[::2]] == ["Friend", "Stranger", "All partners"]
    rows = [[cell.replace("\u00a0", " ") for cell in row[3:5]] for row in table.rows[2:4]]
    assert rows[0] == ["0 of 20", "0.0 % [0.0, 15.0]"]
    assert rows[1][0] == "10 of 20"
    table = difference_table(view, analyse(view))
    assert table.columns[1:3] == ("Success, points, 95 %", "Contact, points, 95 %")
    assert table.rows[1][0] == "Stranger"
    assert table.rows[1][1].startswith("+25.0 [")
    assert table.rows[1][2].startswith("−50.0 [")


def test_safety_table_keeps_fallbacks_apart_from_violations():
    view = tiny_view(
        episodes=tuple(
            episode(c, "friend", s, 0, fallback_fired=2 * (c == "on"), violating_steps=3)
            for s in range(3)
            for c in ("on", "off")
        )
    )
    table = contact_table(view, analyse(view))
    columns = dict(zip(table.columns, zip(*table.rows[:2], strict=True), strict=True))
    assert columns["Barrier violated"] == ("9", "9")
    assert [cell.replace("\u00a0", " ") for cell in columns["Contacts"]] == ["0 of 3", "0 of 3"]
    assert columns["Closest, m"] == ("0.600", "0.600")
    table = filter_table(view, analyse(view))
    columns = dict(zip(table.columns, table.rows[0], strict=True))
    assert columns["Braked"] == "6"
    assert "Uncertified" not in columns  # nobody recorded it


def test_filter_table_says_what_the_filter_did_and_leaves_out_who_has_none():
    view = tiny_view()
    table = filter_table(view, analyse(view))
    assert {row[1] for row in table.rows} == {"guarded"}
    changes = [row[table.columns.index("Mean change")] for row in table.rows]
    assert [c.replace("\u00a0", " ") for c in changes[:2]] == ["0.50", "0.75"]
    bare = tuple(e for e in view.episodes if e.condition == "off")
    unfiltered = replace(view, conditions=view.conditions[1:], episodes=bare)
    assert filter_table(unfiltered, analyse(unfiltered)) is None


def test_success_table_shows_interval_and_return():
    view = tiny_view()
    row = [c.replace("\u00a0", " ") for c in success_table(view, analyse(view)).rows[0]]
    # 20 of 20: by ten seeds, two each; the constant return has no interval
    assert row == ["Friend", "guarded", "20", "10", "100.0 % [85.0, 100.0]", "2.00 no interval"]


def turned_to_loss(seeds) -> ReportView:
    """Return the tiny view of some seeds, the filter under the worse condition."""
    view = tiny_view()
    on, off = (replace(c, filtered=not c.filtered) for c in view.conditions)
    few = tuple(e for e in view.episodes if e.seed in seeds)
    return replace(view, conditions=(on, off), episodes=few)


def test_change_without_an_interval_is_not_told_as_no_clear_change():
    view = turned_to_loss([9])
    numbers = analyse(view)
    success = numbers.overall.comparisons["success"]
    unknown = replace(success, difference=replace(success.difference, low=None, high=None))
    overall = replace(numbers.overall, comparisons={"success": unknown})
    assert excludes_zero(unknown.difference) is None
    numbers = replace(numbers, overall=overall)
    sentence = verdict(view, numbers)
    assert "a change that cannot be judged (−25.0 points; no interval)" in sentence
    assert "clear" not in sentence
    tile = headline_tiles(view, numbers)[2]
    assert (tile.value, tile.css) == ("−25.0", "bad")


def test_loss_whose_interval_includes_zero_is_not_red():
    view = turned_to_loss([0, 1, 9])
    numbers = analyse(view)
    assert excludes_zero(numbers.overall.comparisons["success"].difference) is False
    tile = headline_tiles(view, numbers)[2]
    assert (tile.value, tile.css) == ("−8.3", "plain")
    assert tile.detail.endswith("includes zero")
