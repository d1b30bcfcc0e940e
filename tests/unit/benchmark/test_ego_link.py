import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import build_safety_driver
from cadenza.benchmark.cells import ConditionEntry, EvaluationPlan
from cadenza.benchmark.ego_link import EgoLink, LinkConfig
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    load_evaluation_config,
    make_plan,
    run_evaluation,
    summary_settings,
)
from cadenza.benchmark.policies import load_policy
from cadenza.benchmark.safety_tables import link_costs
from cadenza.benchmark.tasks import get_task, isolated_tasks, register_task
from cadenza.benchmark.verify import verify_bundle_dir
from cadenza.comm import URLLC_3GPP_R17, DegradationProfile
from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import find_config
from cadenza.envs import CrossingEnv, MPECooperativePushEnv
from cadenza.evaluation.results import episode_line
from tests.integration.docs.pages import blocks, execute
from tests.unit.benchmark import samples

PAGE = "how-to/degrade-the-link.md"
SILENT = {"task_id": "silent", "supports_links": False}
GUARDED = SafetyConfig(enabled=True, max_age_s=0.4)


def play(link, *, safety=GUARDED, task="crossing", options=None, partner="crossing_chaser", seed=3):
    with open_world(
        env=EnvConfig(task=task, episode_length=60, options=options or {}),
        partner=PartnerConfig(class_name=partner, extra={"uid": "partner"}),
        safety=safety,
        link=link,
        root_seed=0,
        make_policy=lambda seat: load_policy("goal_pd", seat=seat, artifacts_root=None),
    ) as world:
        tag = EpisodeTag(
            seed=0, episode_idx=0, initial_state_seed=seed, policy="p", condition="c", partner="q"
        )
        return run_episode(world, tag)


@pytest.mark.parametrize("options", [{}, {"num_robots": 4}])
def test_perfect_link_changes_nothing_but_the_record(options):
    bare, ideal = play(None, options=options), play(LinkConfig(), options=options)
    sent = (bare.n_steps + 1) * (options.get("num_robots", 2) - 1)
    assert bare.metadata == {"policy": "p"}
    assert ideal.metadata["link"] == {
        "age_mean_s": 0.0,
        "age_peak_s": 0.0,
        "dropped": 0,
        "delivered": sent,
    }
    assert episode_line(ideal.model_copy(update={"metadata": bare.metadata})) == episode_line(bare)


def test_ego_and_filter_see_the_delivered_packet_with_its_true_age():
    env = CrossingEnv()
    link = EgoLink(env, LinkConfig(latency_mean_ms=100.0))  # two control steps of 50 ms
    obs, _ = env.reset(seed=1)
    rng = np.random.default_rng(0)
    truth, seen = [env.build_agent_snapshots()], link.begin(1, obs)
    for step in range(8):
        sent = max(0, step - 2)
        agents = link.snapshots()
        assert agents["partner"].age_s == pytest.approx(0.05 * (step - sent))
        assert agents["partner"].position.tolist() == truth[sent]["partner"].position.tolist()
        assert agents["partner"].velocity.tolist() == truth[sent]["partner"].velocity.tolist()
        assert agents["ego"].position.tolist() == truth[step]["ego"].position.tolist()
        assert agents["ego"].age_s == 0.0
        relative = truth[sent]["partner"].position - truth[step]["ego"].position
        assert seen["agent"]["ego"]["state"][6:8] == pytest.approx(relative, abs=1e-6)
        assert seen["agent"]["partner"] is obs["agent"]["partner"]
        assert ("partner" in seen["comm"]["pose"]) == (step >= 2)
        obs = env.step({uid: rng.uniform(-1, 1, 2) for uid in env.agent_uids})[0]
        truth.append(env.build_agent_snapshots())
        seen = link.observe(obs)


def test_ages_reach_the_constraints_of_the_filter():
    # The partner stands still, so every packet about it says the same; only the age differs.
    def first_intervention(latency_ms):
        env = CrossingEnv()
        link = EgoLink(env, LinkConfig(latency_mean_ms=latency_ms))
        link.begin(1, env.reset(seed=1)[0])
        driver = build_safety_driver(env, GUARDED, link=link)
        assert driver.bounds.comm_latency_ms == latency_ms
        driver.begin_run(0)
        driver.begin_episode()
        ego, partner = (env.robot_positions()[uid] for uid in env.agent_uids)
        ahead = 2.0 * (partner - ego) / np.linalg.norm(partner - ego)
        for index in range(28):
            step = driver.step(ahead)
            assert not step.uncertified
            if step.info["intervention"] > 0.0:
                return index
            link.observe(env.step({"ego": ahead, "partner": np.zeros(2)})[0])
        raise AssertionError("the filter let the ego run into the partner")

    fresh, old, older = (first_intervention(latency_ms) for latency_ms in (0.0, 200.0, 300.0))
    assert fresh > old > older
    assert play(LinkConfig(latency_mean_ms=500.0)).uncertified_steps > 0  # beyond max_age_s
    assert play(LinkConfig(latency_mean_ms=300.0)).uncertified_steps == 0


def test_published_filter_that_ignores_ages_collides_and_ours_does_not():
    link = LinkConfig(profile="saturation")
    published = SafetyConfig(enabled=True, barrier="wae", compat="upstream")
    seeds = range(6)
    ours = [play(link, partner="crossing_goal_seeker", seed=seed).contact for seed in seeds]
    theirs = [
        play(link, partner="crossing_goal_seeker", seed=seed, safety=published).contact
        for seed in seeds
    ]
    assert not any(ours)
    assert any(theirs)


def test_link_without_filter_and_without_hooks():
    unfiltered = play(LinkConfig(profile="lossy"), safety=SafetyConfig())
    assert unfiltered.metadata["link"]["delivered"] > 0
    with open_world(
        env=EnvConfig(task="mpe_cooperative_push", episode_length=10),
        partner=PartnerConfig(class_name="scripted_heuristic", extra={"uid": "partner"}),
        safety=SafetyConfig(),
        link=LinkConfig(latency_mean_ms=300.0),
        root_seed=0,
        make_policy=lambda seat: load_policy("random", seat=seat, artifacts_root=None),
    ) as world:
        tag = EpisodeTag(
            seed=0, episode_idx=0, initial_state_seed=1, policy="p", condition="c", partner="q"
        )
        # 300 ms are 3 steps of 0.1 s; ages are 0, 1, 2, 3, 3, ... over 11 observations.
        record = run_episode(world, tag).metadata["link"]
        assert record["age_mean_s"] == pytest.approx(0.1 * (0 + 1 + 2 + 8 * 3) / 11)
    silent = MPECooperativePushEnv()
    silent.comm_state = None
    with pytest.raises(ConfigurationError, match="without comm_state"):
        EgoLink(silent, LinkConfig())


def test_config_is_a_preset_with_changes():
    assert LinkConfig(profile="wifi").to_profile() is not None
    changed = LinkConfig(profile="lossy", burst_length=5.0).to_profile()
    assert changed == DegradationProfile(30.0, 5.0, 0.01, burst_length=5.0)
    assert LinkConfig(profile="saturation").to_profile() == URLLC_3GPP_R17["saturation"]
    with pytest.raises(ValidationError, match="did you mean 'wifi'"):
        LinkConfig(profile="wify")
    with pytest.raises(ValidationError, match="drop_rate"):
        LinkConfig(drop_rate=2.0)


def test_plan_names_links_and_leaves_out_absent_ones():
    bare = ConditionEntry(name="bare", safety=SafetyConfig())
    linked = ConditionEntry(name="linked", safety=SafetyConfig(), link=LinkConfig(profile="wifi"))
    assert set(bare.model_dump(mode="json")) == {"name", "safety"}
    plan = samples.make_plan(conditions=(bare, linked))
    assert EvaluationPlan.from_bytes(plan.to_bytes()) == plan
    assert b'"link":{' in plan.to_bytes()
    without = samples.make_plan(conditions=(bare,))
    assert b"link" not in without.to_bytes()
    # A cell's key depends on its own condition alone.
    assert set(without.cells) < set(plan.cells)


def config(**changes):
    filter_on = {"enabled": True, "max_age_s": 0.4}
    return EvaluationConfig.model_validate(
        {
            "task": "crossing",
            "policies": ["goal_pd"],
            "partners": ["crossing_goal_seeker", "crossing_chaser"],
            "conditions": [
                {"name": "perfect", "link": "ideal", "safety": filter_on},
                {"name": "late", "link": {"profile": "saturation"}, "safety": filter_on},
                {"name": "unguarded", "link": "lossy"},
            ],
            "seeds": [0, 1],
            "episodes_per_seed": 1,
            "episode_length": 50,
        }
        | changes
    )


def test_evaluation_tells_what_a_link_costs(tmp_path):
    outcome = run_evaluation(config(), out=tmp_path / "out", workers=1)
    episodes = outcome.episodes["goal_pd"]
    perfect, late, unguarded = link_costs(outcome.plan, episodes, has_success=True)
    assert (perfect.baseline, late.baseline, unguarded.baseline) == (None, "perfect", None)
    assert perfect.steps is None
    assert perfect.age_mean_s == perfect.lost == 0.0
    assert 0.05 < late.age_mean_s < 0.2
    assert 0.03 < late.lost < 0.2
    assert late.uncertified == 0.0
    assert unguarded.uncertified is None
    lengths = {
        name: {(e.partner, e.seed): e.n_steps for e in episodes if e.condition == name}
        for name in ("perfect", "late")
    }
    changes = [lengths["late"][key] - n for key, n in lengths["perfect"].items()]
    assert late.steps.value == pytest.approx(np.mean(changes))
    assert late.steps.n == 4
    bundle = outcome.bundles["goal_pd"]
    rows = verify_bundle_dir(bundle, repo_path=None, allow_dirty=True)
    assert [row.name for row in rows if not row.ok] == []


def test_page_runs_as_printed_and_its_conditions_are_read(capsys):
    (code,) = blocks(PAGE)
    execute(PAGE)
    printed = capsys.readouterr().out.splitlines()
    comments = [re.split("[:,] (?:nothing|two)", line)[0] for line in re.findall("  # (.*)", code)]
    assert printed[:2] == comments
    (conditions,) = blocks(PAGE, "yaml")
    choices = config(**yaml.safe_load(conditions)).conditions
    assert [choice.name for choice in choices] == ["ideal", "wifi", "bursts"]
    assert choices[2].link.to_profile() == DegradationProfile(30.0, 5.0, 0.05, burst_length=5.0)


def test_shipped_configuration_differs_in_its_links_alone():
    shipped = load_evaluation_config(find_config(Path("link"), "eval"))
    links = [condition.link.profile for condition in shipped.conditions]
    assert links == ["ideal", "wifi", "lossy", "saturation"]
    assert len({condition.safety.model_dump_json() for condition in shipped.conditions}) == 1
    assert summary_settings(shipped).comparison == ("wifi", "lossy", "saturation", "ideal")
    make_plan(shipped)


def test_links_are_compared_with_the_first_condition_of_the_same_filter():
    assert summary_settings(config()).comparison == ("late", "perfect")
    default = EvaluationConfig(task="crossing", policies=("zero",))
    assert summary_settings(default).comparison == ("filter_on", "filter_off")
    with isolated_tasks():
        register_task(get_task("crossing").model_copy(update=SILENT))
        with pytest.raises(ConfigurationError, match="has no links"):
            make_plan(config(task="silent", partners=["crossing_goal_seeker"]))
