"""Configuration: shipped files, fingerprint, refusals."""

import hashlib
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from cadenza.aht.algorithms import list_algorithms
from cadenza.aht.config import EgoAHTConfig, config_fingerprint, load_config
from cadenza.core.errors import ConfigurationError

CONFIGS = Path(__file__).parents[3] / "configs" / "train"
MPE = CONFIGS / "mpe_cooperative_push.yaml"
#: The JSON that upstream hashes for its MPE configuration; its SHA-256 begins 48aa451e7544199a.
UPSTREAM_JSON = (
    '{"algo":"ego_aht_happo","seed":0,"total_frames":100000,"checkpoint_every":10000,"env":'
    '{"task":"mpe_cooperative_push","episode_length":50,"agent_uids":["ego","partner"],'
    '"condition_id":null,"num_envs":1,"mask_partner_obs":false},"partner":{"class_name":'
    '"scripted_heuristic","seed":0,"checkpoint_step":null,"weights_uri":null,"extra":{"uid":'
    '"partner","target_xy":"0.0,0.0","action_dim":"2"}},"happo":{"lr":0.0003,"gamma":0.99,'
    '"gae_lambda":0.95,"clip_eps":0.2,"n_epochs":4,"rollout_length":1024,"batch_size":256,'
    '"hidden_dim":64},"runtime":{"device":"cpu","deterministic_torch":true},"safety":{"enabled":'
    'false,"saturation_threshold":0.9,"cbf_gamma":5.0,"lambda_safe":0.0,"n_warmup_steps":50,'
    '"predictor_kind":"constant_velocity","tau_brake":0.1,"clamp_floor_ratio":0.7},'
    '"rollout_recorder":{"enabled":false,"interval_frames":25000,"per_step_jsonl":true,'
    '"episodes_per_record":1,"fps":20},"shaping":{"settle_alpha":0.0,"settle_qvel_cap":0.7,'
    '"transport_pbrs_coeff":0.0},"exploratory":{"partner_static_override":false}}'
)


def minimal(**changes: object) -> EgoAHTConfig:
    return EgoAHTConfig.model_validate({"env": {"task": "any"}, **changes})


def test_fingerprint_of_the_shipped_mpe_configuration_is_the_upstream_one():
    assert hashlib.sha256(UPSTREAM_JSON.encode()).hexdigest()[:16] == "48aa451e7544199a"
    assert config_fingerprint(load_config(config_path=MPE)) == "48aa451e7544199a"


def test_fingerprint_of_where_results_go_stays_the_same(tmp_path):
    moved = load_config(
        config_path=MPE,
        overrides=[
            f"artifacts_root={tmp_path}",
            f"log_dir={tmp_path}",
            "wandb.enabled=true",
            "+tensorboard.enabled=true",
            "+resume.keep=5",
        ],
    )
    assert config_fingerprint(moved) == "48aa451e7544199a"


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "happo.lr=1e-4",
        "+env.options.num_robots=3",
        "+ppo_extras.target_kl=0.02",
        "+evaluation.every_frames=1000",
        "+safety.margin_m=0.05",
        "+safety.eta=0.02",
    ],
)
def test_fingerprint_of_a_changed_result_changes(override):
    assert config_fingerprint(load_config(config_path=MPE, overrides=[override])) != (
        "48aa451e7544199a"
    )


def test_fingerprint_of_own_fields_appends_only_those_that_differ():
    config = load_config(config_path=MPE, overrides=["+safety.margin_m=0.05"])
    material = UPSTREAM_JSON + '\ncadenza-extensions/1\n{"safety.margin_m":0.05}'
    assert config_fingerprint(config) == hashlib.sha256(material.encode()).hexdigest()[:16]


def test_fingerprint_tells_true_from_one():
    with_flag = minimal(env={"task": "any", "options": {"x": True}})
    with_number = minimal(env={"task": "any", "options": {"x": 1}})
    assert with_flag.env.options["x"] is True
    assert config_fingerprint(with_flag) != config_fingerprint(with_number)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configuration_loads(path):
    ours = path.stem.startswith(("mpe_cooperative_push", "crossing", "stage1_pickplace"))
    named = path.stem
    for task in ("mpe_cooperative_push", "crossing", "stage1_pickplace"):
        named = named.removeprefix(task)
    named = named.strip("_")
    assert load_config(config_path=path).algo == ((named or "ego_aht_happo") if ours else "ppo")


@pytest.mark.parametrize("algorithm", list_algorithms())
def test_crossing_is_shipped_for_every_algorithm_and_the_name_alone_switches(algorithm):
    path = CONFIGS / "crossing.yaml"
    config = load_config(config_path=path, overrides=["seed=7", f"algo={algorithm}"])
    assert (config.algo, config.seed, config.env.task) == (algorithm, 7, "crossing")
    own = yaml.safe_load(path.read_text(encoding="utf-8"))["algorithms"][algorithm]
    assert config.total_frames == own["total_frames"]
    for section in ("sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo"):
        if section in own:
            settings = getattr(config, section)
            assert (settings.gamma, settings.hidden_sizes) == (0.97, (64, 64))


def test_settings_of_another_algorithm_cannot_be_overridden_without_effect():
    with pytest.raises(ValidationError, match="algorithms"):
        load_config(
            config_path=CONFIGS / "crossing.yaml", overrides=["algorithms.sac.sac.gamma=0.5"]
        )


def file_with(folder: Path, algorithms: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(f"algo: ppo\nenv: {{task: any}}\nalgorithms: {algorithms}\n")
    return path


@pytest.mark.parametrize(("section", "got"), [("", "None"), (" 3", "3"), (" [1]", "[1]")])
def test_settings_of_an_algorithm_that_are_no_mapping_are_refused(section, got, tmp_path):
    told = re.escape(f"got {got}; write {{}} for none")
    with pytest.raises(ConfigurationError, match=rf"algorithms\.ppo: .* {told}"):
        load_config(config_path=file_with(tmp_path, f"{{ppo:{section}}}"))


@pytest.mark.parametrize("changes", [["~total_frames"], ["+algo=ppo", "~total_frames"]])
def test_key_that_only_the_chosen_algorithm_sets_can_be_removed(changes, tmp_path):
    path = file_with(tmp_path, "{ppo: {total_frames: 9}}")
    assert load_config(config_path=path).total_frames == 9
    assert load_config(config_path=path, overrides=changes).total_frames == minimal().total_frames
    with pytest.raises(ConfigurationError, match="total_frames"):
        load_config(config_path=path, overrides=["algo=random", "~total_frames"])


def test_file_without_an_algorithm_takes_the_settings_of_the_default(tmp_path):
    path = file_with(tmp_path, f"{{{minimal().algo}: {{total_frames: 9}}}}")
    path.write_text(path.read_text().removeprefix("algo: ppo\n"))
    assert load_config(config_path=path).total_frames == 9


def test_shipped_crossing_configuration_turns_the_filter_on():
    config = load_config(config_path=CONFIGS / "crossing.yaml")
    assert config.safety.enabled
    met = [partner.class_name for partner in config.trained_with]
    assert met == ["crossing_goal_seeker", "crossing_stationary"]
    changes = ["total_frames=9", "algo=sac"]
    assert load_config(config_path=CONFIGS / "crossing.yaml", overrides=changes).total_frames == 9


def test_partner_and_partners_cannot_both_be_named():
    with pytest.raises(ValidationError, match=r"got both.*'partners=\[crossing_wanderer\]'"):
        EgoAHTConfig.model_validate(
            {
                "env": {"task": "crossing"},
                "partner": "crossing_wanderer",
                "partners": ["crossing_stationary"],
            }
        )


def test_every_partner_of_a_mixture_is_part_of_a_run_s_identity():
    first, second = ("crossing_goal_seeker", "crossing_stationary")
    mixtures = [(), (first,), (first, second), (second, first)]
    configs = [{"env": {"task": "crossing"}, "partners": names} for names in mixtures]
    found = {config_fingerprint(EgoAHTConfig.model_validate(config)) for config in configs}
    assert len(found) == len(mixtures)


def test_load_config_with_interpolation_resolves_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("seed: 4\nenv: {task: any}\npartner: {seed: '${seed}'}\n")
    assert load_config(config_path=path).partner.seed == 4


def test_load_config_with_a_reference_to_itself_or_to_nothing_is_refused(tmp_path):
    path = tmp_path / "c.yaml"
    for value, told in (("${env.task}", "to itself"), ("${sed}", "'sed' (did you mean 'seed'?)")):
        path.write_text(f"seed: 4\nenv: {{task: '{value}'}}\n")
        with pytest.raises(ConfigurationError, match=re.escape(told)):
            load_config(config_path=path)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_load_config_override_of_a_key_that_the_file_does_not_mention(plus):
    config = load_config(config_path=MPE, overrides=[f"{plus}env.options.num_robots=3"])
    assert config.env.options == {"num_robots": 3}
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        load_config(config_path=MPE, overrides=[f"{plus}happo.momentum=0.9"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "greater than or equal to 0"),
        ({"total_frames": 0}, "greater than 0"),
        ({"env": {"task": "any", "agent_uids": ["a", "a"]}}, "distinct"),
        ({"env": {"task": "any", "num_envs": 0}}, "greater than or equal to 1"),
        ({"env": {}}, "Field required"),
        ({"happo": {"gamma": 1.5}}, "less than or equal to 1"),
        ({"happo": {"lr": float("nan")}}, "finite number"),
        ({"safety": {"clamp_floor_ratio": 0.9}}, "strictly less than"),
        ({"safety": {"intervention_penalty": 0.1}}, "expected 0 without the filter"),
        ({"safety": {"saturation_threshold": 1.5}}, "less than or equal to 1"),
        ({"safety": {"predictor_kind": "oracle"}}, "constant_velocity"),
        ({"partner": {"extra": {"k": 1}}}, "valid string"),
        ({"algo": "ego_aht_sac"}, "expected one of cec, .*, upd, got 'ego_aht_sac'"),
        ({"resume": {"keep": 0}}, "greater than or equal to 1"),
        ({"ppo_extras": {"target_kl": 0.0}}, "greater than 0"),
        ({"rollout_recorder": {"enabled": True}}, "cadenza eval run"),
        ({"rollout_recorder": {"fps": 30}}, "rollout_recorder.fps: expected its default 20"),
        ({"shaping": {"settle_alpha": 0.5}}, "shaping.settle_alpha"),
        ({"exploratory": {"partner_static_override": True}}, "crossing_stationary"),
        ({"runtime": {"device": "gpu"}}, "runtime.device: expected 'auto', 'cpu', 'mps', 'cuda'"),
        (
            {"algo": "sac", "runtime": {"device": "mps"}},
            "runtime.device: expected 'auto', 'cpu', 'cuda' or 'cuda:<index>' with algo=sac, got "
            "'mps'",
        ),
    ],
)
def test_configuration_out_of_range_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        minimal(**changes)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("=3", "expected key=value, got '=3'"),
        ("artifacts_root=\udcff", "got the control character"),
    ],
)
def test_load_config_override_that_cannot_be_read_is_refused(override, message):
    with pytest.raises(ConfigurationError, match=message):
        load_config(config_path=MPE, overrides=[override])


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("none.yaml", None, ConfigurationError, r"none\.yaml: expected a YAML file, got none"),
        ("c.yaml", "- 1\n- 2\n", TypeError, "expected a mapping at the root"),
        ("c.yaml", "a: [1, 2\n", ConfigurationError, r"c\.yaml: line \d+, column \d+: expected YA"),
        ("c.yaml", "", TypeError, "got an empty file"),
    ],
)
def test_load_config_of_another_file_is_refused(tmp_path, name, text, error, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        load_config(config_path=tmp_path / name, overrides=["seed=1"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "EgoAHTConfig.env: expected a value, got none"),
        (
            {"env": {"task": "any"}, "sac": {"initial_alpha": 30.0}},
            "EgoAHTConfig.sac.initial_alpha: expected at most max_alpha (10.0), got 30.0",
        ),
        (
            {"env": {"task": "any"}, "algo": "sac", "ppo": {"gamma": 0.5}},
            "algo=sac: expected only settings that it reads, got ppo.gamma; remove them, or choose "
            "the algorithm they belong to.",
        ),
        (
            {"env": {"task": "any"}, "algo": "dqn", "dqn": {"action_masks": True}},
            "dqn.action_masks: expected its default, as egos have no masks; remove it.",
        ),
        (
            {
                "env": {"task": "any"},
                "happo": {"lr": {"schedule": "linear", "start": 1e-3, "end": 0.0, "steps": 9}},
                "ppo_extras": {"lr_decay": True},
            },
            "ppo_extras.lr_decay: expected false beside a schedule of happo.lr, got true; set "
            "ppo_extras.lr_decay=false, or give happo.lr as a number.",
        ),
    ],
)
def test_constructor_refuses_in_one_sentence(settings, told):
    with pytest.raises(ConfigurationError) as refused:
        EgoAHTConfig(**settings)
    assert str(refused.value) == told
