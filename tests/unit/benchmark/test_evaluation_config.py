from pathlib import Path

import pytest
from pydantic import ValidationError

from cadenza.aht.config import SafetyConfig, load_config
from cadenza.benchmark.cells import ConditionEntry
from cadenza.benchmark.evaluation_run import (
    EvaluationConfig,
    load_evaluation_config,
    make_plan,
    summary_settings,
)
from cadenza.benchmark.tasks import get_task
from cadenza.core import shipped_configs
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.core.errors import CheckpointError, ConfigurationError, UnknownNameError
from cadenza.core.files import sha256_bytes, tree_digest
from cadenza.core.shipped_configs import shipped_config

MISSPELT = {"name": "p", "class_name": "crossing_chaser", "extra": {"max_sped": "1"}}


def config(**changes):
    return EvaluationConfig.model_validate({"task": "crossing", "policies": ["zero"]} | changes)


def test_shipped_configuration_gives_a_plan_with_every_crossing_partner():
    plan = make_plan(load_evaluation_config(shipped_config("eval/crossing.yaml")))
    assert [policy.name for policy in plan.policies] == ["goal_pd", "zero", "random"]
    assert [entry.name for entry in plan.partners] == [*get_task("crossing").partners]
    training = load_config(config_path=shipped_config("train/crossing"))
    met = {partner.class_name for partner in training.trained_with}
    assert {entry.name for entry in plan.partners if entry.seen} == met
    assert [c.safety.enabled for c in plan.conditions] == [True, False]
    assert plan.n_episodes == 3 * 5 * 2 * 5 * 20
    assert plan.env.episode_length == 200


def test_bare_names_and_mappings_mean_the_same():
    short = config(partners=["crossing_chaser"])
    long = config(
        policies=[{"name": "zero", "source": "zero"}],
        partners=[{"name": "crossing_chaser", "class_name": "crossing_chaser"}],
    )
    assert short == long
    assert make_plan(short).digest == make_plan(long).digest


def test_partner_is_told_its_seat_and_keeps_its_options():
    partner = {"name": "slow", "class_name": "crossing_goal_seeker", "extra": {"max_speed": "0.5"}}
    plan = make_plan(config(agent_uids=["a", "b"], partners=[partner]))
    assert plan.partners[0].partner.extra == {"uid": "b", "max_speed": "0.5"}


def test_summary_compares_filtered_with_unfiltered():
    settings = summary_settings(config())
    assert settings.headline_condition == "filter_on"
    assert settings.comparison == ("filter_on", "filter_off")
    alone = config(conditions=[ConditionEntry(name="bare", safety=SafetyConfig())])
    assert summary_settings(alone).headline_condition == "bare"
    assert summary_settings(alone).comparison is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policys": []}, "Extra inputs are not permitted"),
        ({"policies": []}, "at least 1 item"),
        ({"episodes_per_seed": 0}, "greater than 0"),
        ({"failure_policy": "lenient"}, "'strict' or 'best_effort'"),
        ({"conditions": [{"name": "x", "safety": {"enable": True}}]}, "Extra inputs"),
    ],
)
def test_malformed_configuration_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"num_robots": 9}}, r"expected an integer in \[2, 8\]"),
        ({"options": {"robots": 3}}, "has no such option"),
        ({"partners": ["nobody"]}, "expected class_name among .*crossing_chaser.*, got 'nobody'"),
        ({"task": "mpe_cooperative_push"}, "has no safety filter"),
        ({"n_resamples": 10}, "n_resamples must be 0 or >= 1000, got 10"),
        ({"seeds": [1, 1]}, "seeds: .*no repetition"),
        ({"partners": [MISSPELT]}, "unknown option 'max_sped'"),
        ({"task": "chess"}, r"'chess'.*crossing@v1"),
        ({"policies": [{"name": "ego", "source": "local://artifacts/x.pt"}]}, "not found"),
    ],
)
def test_configuration_that_fits_nothing_is_refused_before_any_episode(tmp_path, changes, message):
    with pytest.raises((ConfigurationError, UnknownNameError, CheckpointError), match=message):
        make_plan(config(artifacts_root=tmp_path, **changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "expected a YAML mapping, got list"),
        ("a: [", "expected YAML, got a bracket"),
        (None, "expected a YAML file, got none"),
    ],
)
def test_file_that_is_no_yaml_mapping_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_evaluation_config(tmp_path / "x.yaml")


def test_configuration_the_package_does_not_ship_is_refused():
    with pytest.raises(ConfigurationError, match=r"ships, got another \(did you mean 'train/cros"):
        shipped_config("train/crosing.yaml")
    with pytest.raises(ConfigurationError, match=r"file, got none \(did you mean 'crossing'\?\)"):
        load_evaluation_config(Path("crosing"))


def test_partner_weights_are_part_of_the_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))  # where the partner loads them
    metadata = CheckpointMetadata(run_id="r", seed=0, step=1, git_sha="x", pyproject_hash="y")
    save_checkpoint(
        state_dict={"step": 1}, uri="local://partner.pt", metadata=metadata, artifacts_root=tmp_path
    )
    (tmp_path / "partner.onnx").write_bytes(b"graph")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w")
    partner = {"name": "frozen", "class_name": "crossing_stationary"}
    for uri, digest in [
        ("local://artifacts/partner.pt", sha256_bytes((tmp_path / "partner.pt").read_bytes())),
        ("local://artifacts/partner.onnx", sha256_bytes(b"graph")),
        ("local://artifacts/model", tree_digest(tmp_path / "model")),
        ("someone/policy", None),
    ]:
        plan = make_plan(config(partners=[partner | {"weights_uri": uri}]))
        assert plan.partners[0].weights_sha256 == digest


def test_installed_package_finds_its_configurations_inside_itself(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "cadenza"
    path = package / "_configs" / "train" / "crossing.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("algo: ego_aht_happo")
    monkeypatch.setattr(shipped_configs, "PACKAGE", package)
    assert shipped_configs.source_checkout() is None
    assert shipped_config("train/crossing.yaml") == path
