"""Ready-made stream settings of the tasks: what they name, and what they refuse."""

import json

import pytest

from cadenza.aht.config import PartnerConfig, SafetyConfig
from cadenza.benchmark.stream_tasks import EXPERTS, stream_config, stream_partners
from cadenza.benchmark.tasks import CROSSING, get_task, isolated_tasks, register_task
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError, UnknownNameError
from cadenza.stream.config import check_settings
from tests.integration.docs.pages import block, execute


def other_task(**changes):
    """Register a task like crossing under another name."""
    return register_task(CROSSING.model_copy(update={"task_id": "other", **changes}))


@pytest.mark.parametrize("task", sorted({expert.task for expert in EXPERTS.values()}))
def test_every_task_gives_settings_that_an_engine_takes(task):
    cfg = stream_config(task)
    check_settings(cfg)
    assert cfg.steps == get_task(task).episode_length
    assert (cfg.producers, cfg.num_envs, cfg.seed) == (2, 8, 0)
    assert json.loads(json.dumps(cfg.gym_config["kwargs"])) == cfg.gym_config["kwargs"]


def test_settings_follow_the_arguments():
    cfg = stream_config(
        "crossing",
        partners=["crossing_chaser", PartnerConfig(class_name="crossing_wanderer", seed=4)],
        expert="goal_pd",
        safety=SafetyConfig(enabled=False),
        options={"num_robots": 3},
        episode_length=70,
        num_envs=3,
        producers=1,
        seed=9,
        buffer_size=5,
        mode="continuous",
    )
    kwargs = cfg.gym_config["kwargs"]
    assert [p["class_name"] for p in kwargs["partners"]] == ["crossing_chaser", "crossing_wanderer"]
    assert kwargs["partners"][1]["seed"] == 4
    assert (kwargs["root_seed"], kwargs["episode_length"], cfg.steps) == (9, 70, 70)
    assert kwargs["options"] == {"num_robots": 3}
    assert cfg.policy is not None
    assert cfg.policy["kwargs"]["expert"] == "goal_pd"
    assert cfg.policy["kwargs"]["safety"]["enabled"] is False
    assert (cfg.num_envs, cfg.producers, cfg.seed) == (3, 1, 9)
    assert (cfg.buffer_size, cfg.mode) == (5, "continuous")


def test_filter_is_on_only_where_the_task_has_one():
    enabled = {
        task: stream_config(task).policy["kwargs"]["safety"]["enabled"]  # type: ignore[index]
        for task in ("crossing", "mpe_cooperative_push")
    }
    assert enabled == {"crossing": True, "mpe_cooperative_push": False}


def test_policy_of_ones_own_goes_through():
    own = {"factory": "mine:Policy", "kwargs": {"a": 1}}
    assert stream_config("crossing", expert=own).policy == own


def test_streams_leave_strangers_for_evaluations():
    met = {partner.class_name for partner in stream_partners("crossing")}
    assert met == {"crossing_goal_seeker", "crossing_wanderer"}
    assert set(CROSSING.partners) - met == {
        "crossing_stationary",
        "crossing_late_braker",
        "crossing_chaser",
    }


def test_task_without_ready_partners_gets_its_seen_one():
    with isolated_tasks():
        other_task()
        assert [p.class_name for p in stream_partners("other")] == ["crossing_goal_seeker"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"partners": []}, r"at least one partner, got none; task 'crossing' has crossing_goal"),
        (
            {"partners": [PartnerConfig(class_name="crossing_chaser", extra={"speed": "1"})]},
            r"unknown option 'speed'",
        ),
        ({"options": {"robots": 3}}, r"env.options\['robots'\]: task 'crossing' has no such"),
        ({"expert": "cover"}, r"expert of 'crossing' \(swerve, goal_pd\), got 'cover', which play"),
        ({"expert": {"factory": "a:b"}, "safety": SafetyConfig()}, r"expected neither safety nor"),
        ({"expert": {"factory": "a:b"}, "noise": 0.5}, r"expected neither safety nor noise with a"),
        ({"noise": -0.1}, r"noise: expected a standard deviation >= 0, got -0.1"),
        ({"noise": float("nan")}, r"noise: expected a standard deviation >= 0, got nan"),
    ],
)
def test_what_does_not_fit_the_task_is_refused(arguments, match):
    with pytest.raises(ConfigurationError, match=match):
        stream_config("crossing", **arguments)


@pytest.mark.parametrize("name", ["gym_config", "policy", "max_episode_steps", "speed"])
def test_fields_that_follow_from_the_task_or_do_not_exist_are_refused(name):
    with pytest.raises(ConfigurationTypeError, match=rf"further fields among .*, got '{name}'"):
        stream_config("crossing", **{name: 1})


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"task_id": "nothing"}, UnknownNameError, "Unknown env task 'nothing'"),
        ({"expert": "nobody"}, UnknownNameError, "Expert 'nobody': expected one of swerve"),
        ({"partners": ["nobody"]}, UnknownNameError, "Partner 'nobody'"),
        (
            {"task_id": "mpe_cooperative_push", "safety": SafetyConfig(enabled=True)},
            ConfigurationError,
            "'?mpe_cooperative_push'? has no safety filter",
        ),
        ({"task_id": "other"}, ConfigurationError, "stepped as a batch, got 'other'"),
    ],
)
def test_names_and_filters_that_do_not_exist_are_refused(arguments, error, match):
    with isolated_tasks():
        other_task(supports_batches=False)
        with pytest.raises(error, match=match):
            stream_config(**({"task_id": "crossing"} | arguments))


def test_task_without_scripted_ego_needs_a_policy():
    with isolated_tasks():
        other_task()
        with pytest.raises(ConfigurationError, match=r"'other', which has no scripted ego"):
            stream_config("other")
        with pytest.raises(ConfigurationError, match=r"of 'other' \(none\), got 'swerve'"):
            stream_config("other", expert="swerve")
        assert stream_config("other", expert={"factory": "a:b"}).policy == {"factory": "a:b"}


def test_example_of_the_stream_page_gives_settings_that_an_engine_takes():
    names = execute("stream.md", block("stream.md", "stream_config"))
    check_settings(names["cfg"])
    assert names["cfg"].policy["kwargs"] | {"safety": None} == {
        "expert": "swerve",
        "noise": 0.5,
        "safety": None,
    }
