"""Spikes: axes that differ in one factor, a gate that cannot be shopped, partners that change."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.cells import ConditionEntry, PolicyChoice
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.evaluation_run import EvaluationConfig, PartnerChoice, make_plan
from cadenza.benchmark.policies import load_policy
from cadenza.benchmark.spike_axes import adapters, axis_differences, find_adapter
from cadenza.benchmark.spikes import rig
from cadenza.benchmark.spikes.gate import (
    AxisStatus,
    Spike,
    axis_statuses,
    gap_p,
    leaderboard,
    recommendation,
)
from cadenza.benchmark.spikes.runs import made_up_run
from cadenza.core.errors import ConfigurationError
from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER, PreregistrationSpec
from cadenza.evaluation.results import ConditionPair, EpisodeResult, SpikeRun
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.varied_body import on_wheels

PAIR = ConditionPair(homogeneous_id="homo", heterogeneous_id="hetero")


def spike(axis, losses, *, episodes=20, sub_stage="2", reason=None):
    """Return a spike whose control always wins and whose treatment loses so often per seed."""
    played = [
        EpisodeResult(
            seed=seed,
            episode_idx=k,
            initial_state_seed=k,
            success=condition == "homo" or k >= lost,
            condition=condition,
            metadata={"policy": "ego"},
        )
        for seed, lost in enumerate(losses)
        for condition in ("homo", "hetero")
        for k in range(episodes)
    ]
    run = SpikeRun(
        spike_id=f"{axis}-ego",
        prereg_sha="",
        git_tag="",
        axis=axis,
        sub_stage=sub_stage,
        condition_pair=PAIR,
        seeds=list(range(len(losses))),
        episode_results=played,
    )
    return Spike(path=Path(axis), run=run, reason=reason)


def by_axis(*spikes):
    return {row.axis: row for row in axis_statuses(spikes)}


@pytest.mark.parametrize("axis", CANONICAL_AXIS_ORDER)
def test_conditions_of_an_axis_differ_in_one_factor_alone(axis):
    for adapter in adapters()[axis]:
        first, second, *others = (c.model_dump(exclude={"name"}) for c in adapter.conditions)
        differing = {key for key in {*first, *second} if first.get(key) != second.get(key)}
        assert len(differing) == 1
        assert all(first["safety"] == other["safety"] for other in others)


def plan_of(axis, **changes):
    adapter = find_adapter(axis)
    partner = PartnerChoice(name=adapter.partner, class_name=adapter.partner)
    given = {"conditions": adapter.conditions, "partners": (partner,), "seeds": (0, 1)}
    policies = (PolicyChoice(name="zero", source="zero"),)
    return make_plan(
        EvaluationConfig(
            task=adapter.task, policies=policies, **{**given, "episodes_per_seed": 3, **changes}
        )
    )


SPEC = {
    "axis": "PF",
    "condition_pair": find_adapter("PF").pair,
    "seeds": [0, 1],
    "episodes_per_seed": 3,
    "estimator": "mean_success_rate",
    "git_tag": "t",
}


@pytest.mark.parametrize(
    ("registered", "played", "told"),
    [
        ({}, {}, []),
        ({}, {"seeds": (0, 2)}, ["seeds"]),
        ({}, {"episodes_per_seed": 2}, ["episodes_per_seed"]),
        ({}, {"episode_length": 10}, ["episode_length"]),
        ({}, {"conditions": (ConditionEntry(name="x"),)}, ["conditions"]),
        ({"git_tag": "u"}, {}, ["git_tag"]),
        ({"estimator": "iqm_success_rate"}, {}, ["estimator"]),
        ({"condition_pair": PAIR}, {}, ["axis 'PF'"]),
    ],
)
def test_plan_is_compared_with_the_registered_axis(registered, played, told):
    spec = PreregistrationSpec.model_validate(SPEC | registered)
    found = axis_differences(spec, plan_of("PF", **played), "t")
    assert [line.partition(":")[0] for line in found] == told


def test_conditions_without_the_new_settings_keep_their_bytes():
    assert set(ConditionEntry(name="x").model_dump()) == {"name", "safety"}


def test_option_that_a_task_does_not_have_is_refused_before_anything_is_played():
    odd = (ConditionEntry(name="x", options={"gravity": 1}),)
    with pytest.raises(ConfigurationError, match="gravity"):
        plan_of("PF", conditions=odd)


@pytest.mark.parametrize("losses", [(8, 9, 7, 8), (4, 12, 6, 9, 7), (20, 11, 17)])
def test_p_of_a_gap_is_that_of_the_t_test(losses):
    gaps = np.array(losses) / 20.0
    error = gaps.std(ddof=1) / np.sqrt(len(gaps))
    expected = stats.t.sf((gaps.mean() - 0.2) / error, len(gaps) - 1)
    assert gap_p(spike("CM", losses).run) == pytest.approx(expected, rel=1e-6)
    assert gap_p(spike("CM", (4, 4, 3)).run) == 1.0


def test_axis_that_was_not_played_counts_in_its_family():
    losses = (9, 7, 8, 5, 10)  # p = 0.012: passes alone at 2.5 %, not as one of two
    rows = by_axis(spike("CM", losses))
    assert rows["CM"].result.ci_low_pp > 20.0
    assert rows["CM"].p_holm == pytest.approx(2.0 * gap_p(spike("CM", losses).run))
    assert rows["CM"].passes is (rows["CM"].p_holm <= 0.025)
    assert rows["CR"].status == "Missing"
    both = by_axis(spike("CM", losses), spike("CR", (19, 18, 19, 20, 18)))
    assert both["CR"].passes is True
    assert both["CM"].p_holm == pytest.approx(gap_p(spike("CM", losses).run))  # second in line
    assert both["CM"].passes is True


@pytest.mark.parametrize(
    ("passing", "word"),
    [
        ({}, "Defer"),
        ({"CM": True}, "Defer"),
        ({"AS": False, "OM": False, "CM": True}, "Stop"),
        ({"AS": True, "CM": True}, "Accept-Partial-Defer"),
        ({"OM": True, "CM": True, "PF": True, "CR": True}, "Accept-Validated"),
        ({"OM": True, "CM": True, "PF": True, "CR": False}, "Accept-Partial-Defer"),
    ],
)
def test_recommendation_follows_the_rule(passing, word):
    stages = {"AS": "1b", "OM": "1b"}
    rows = [
        AxisStatus(axis=axis, stage=stages.get(axis, "2"), status="", passes=passing.get(axis))
        for axis in CANONICAL_AXIS_ORDER
    ]
    assert recommendation(rows) == f"**Recommendation: {word}**"


def test_rehearsal_gates_nothing_and_gets_no_row():
    invented = made_up_run("CM", "2")
    reasons = [invented.rehearsal_reason, "stage 1a, which only tries the rig"]
    dry = Spike(path=Path("x"), run=invented, reason=reasons[0])
    tried = spike("AS", (20, 20, 20), sub_stage="1a", reason=reasons[1])
    rows = by_axis(dry, tried)
    assert (rows["CM"].status, rows["AS"].status) == tuple(reasons)
    assert not any(row.passes or row.result for row in rows.values())
    forged = Spike(path=Path("x"), run=invented)  # also where nobody had looked
    assert leaderboard([forged], {})[0] == []
    assert "a dry run" in leaderboard([forged], {})[1]["dry-run"]


def test_rig_holds_together_and_a_broken_one_is_told(monkeypatch):
    assert [(check.name, check.ok) for check in rig.rig_checks()] == [
        ("states", True),
        ("channel", True),
        ("rates", True),
    ]
    monkeypatch.setattr(rig, "PerAgentActionRepeatWrapper", lambda env, _: env)
    monkeypatch.setattr(rig, "DROP_RATE", 0.0)
    assert [check.name for check in rig.rig_checks() if not check.ok] == ["channel", "rates"]


def test_base_on_wheels_does_not_move_sideways():
    wanted = np.array([[0.3, 0.4], [0.3, 0.4], [0.3, 0.4]], np.float32)
    state = np.zeros((3, 10))
    state[0, 2:4] = (0.1, 0.0)  # drives along x: half of the sideways part at 2 rad/s
    state[1, 4:6] = (0.0, 2.0)  # stands, its goal along y
    state[2, 2:4] = (3.0, 4.0)  # fast along what is wanted
    expected = [[0.3, 0.2], [0.0, 0.4], [0.3, 0.4]]
    np.testing.assert_allclose(on_wheels(wanted, state, 2.0), expected, atol=1e-7)


SWAP = {"partner": "crossing_wanderer", "then": "crossing_chaser", "step": "3", "uid": "partner"}


def test_swapped_partner_is_the_first_one_and_then_a_fresh_second_one():
    swapped = load_partner(PartnerSpec("swapped", 0, extra=SWAP))
    first, then = (
        load_partner(PartnerSpec(SWAP[key], 0, extra={"uid": "partner"}))
        for key in ("partner", "then")
    )
    states = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)
    views = [{"agent": {"partner": {"state": state}}} for state in states]
    for partner in (swapped, first, then):
        partner.reset(seed=4)
    ids = []
    for step, view in enumerate(views):
        expected = (first if step < 3 else then).act(view)
        np.testing.assert_array_equal(swapped.act(view), expected)
        ids += swapped.playing_ids
    assert ids == [first.spec.partner_id] * 3 + [then.spec.partner_id] * 3


def test_filter_begins_anew_when_the_partner_changes():
    told = []
    with open_world(
        env=EnvConfig(task="crossing", episode_length=12),
        partner=PartnerConfig(class_name="swapped", extra=SWAP),
        safety=SafetyConfig(enabled=True, n_warmup_steps=0),
        root_seed=0,
        make_policy=lambda seat: load_policy("goal_pd", seat=seat, artifacts_root=Path()),
    ) as world:
        decide = world.guard.step

        def watched(action, *, partner_id):
            step = decide(action, partner_id=partner_id)
            told.append((partner_id, *step.lambda_.values()))
            return step

        world.guard.step = watched
        tag = {"policy": "ego", "condition": "c", "partner": "p"}
        run_episode(world, EpisodeTag(seed=0, episode_idx=0, initial_state_seed=1, **tag))
    ids, margins = zip(*told, strict=True)
    changes = [k for k in range(1, len(ids)) if ids[k] != ids[k - 1]]
    assert changes == [3]
    assert margins[2] != margins[0]
    assert margins[3] == margins[0]
