import shutil
from types import SimpleNamespace

import pytest

from cadenza.core.strict_json import write_sealed_json
from cadenza.loop import doctor
from cadenza.loop.config import LoopConfig
from cadenza.loop.doctor import inputs_check
from cadenza.loop.schedule import SeedLedger


def config(**changes):
    return LoopConfig(**({"run_name": "r", "seed_dataset": "local/d"} | changes))


def lerobot_config(env_type="libero", **changes):
    rungs = [{"name": "act"}]
    return config(backend="lerobot", policy_ladder=rungs, eval={"env_type": env_type}, **changes)


def by_name(checks):
    return {check.name: check for check in checks}


def examined(folder, wanted, environ=None):
    """Return what is found for a configuration, by name."""
    environ = {"HOME": str(folder), **(environ or {})}
    place = {"store": folder / "cadenza.db", "workdir": folder / "runs"}
    return by_name(doctor.examine(config=wanted, environ=environ, **place))


@pytest.mark.parametrize(("wanted", "level"), [(None, "warn"), (lerobot_config(), "fail")])
def test_a_missing_lerobot_fails_only_who_wants_it(wanted, level, tmp_path):
    [check] = doctor.lerobot_checks({"HOME": str(tmp_path)}, wanted=wanted)
    assert check.level == level
    assert "environments/install.py" in check.fix


@pytest.mark.parametrize(
    ("free_gib", "native", "theirs"), [(0.5, "fail", "fail"), (10, "ok", "warn"), (40, "ok", "ok")]
)
def test_disk_space_is_judged_by_what_the_back_end_needs(
    free_gib, native, theirs, tmp_path, monkeypatch
):
    usage = SimpleNamespace(free=int(free_gib * 2**30))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert examined(tmp_path, config())["disk"].level == native
    assert examined(tmp_path, lerobot_config())["disk"].level == theirs
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "may not write" in examined(tmp_path, config())["disk"].detail


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 12), "ok"), ((3, 13), "fail")]
)
def test_python_is_one_that_the_package_supports(version, level, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(version_info=(*version, 1, "final", 0)))
    assert examined(tmp_path, None)["python"].level == level


@pytest.mark.parametrize(
    ("llm", "environ", "level"),
    [
        ("openai:m@http://127.0.0.1:1", {}, "ok"),
        ("openai:m", {"OPENAI_API_KEY": "secret"}, "ok"),
        ("openai:m", {"ANTHROPIC_API_KEY": "secret"}, "warn"),
        ("gemini:m", {}, "fail"),  # its client cannot even be made
    ],
)
def test_the_model_of_a_configuration_needs_a_key_unless_the_server_is_ones_own(
    llm, environ, level, tmp_path, monkeypatch
):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    check = examined(tmp_path, config(llm=llm), environ)["language model"]
    assert check.level == level
    assert (check.fix is None) == (level != "warn")
    assert "secret" not in check.model_dump_json()


def test_a_configuration_must_find_its_rules_and_its_data(tmp_path):
    wanted = config(constitution=tmp_path / "rules.yaml", seed_root=tmp_path / "data")
    found = examined(tmp_path, wanted).values()
    # no rules allow its commands
    assert {check.name for check in found if check.level == "fail"} == {
        *("constitution", "back end", "inputs")
    }


@pytest.mark.parametrize(("reference", "told"), [(None, True), ("none", False), ("a/b", False)])
def test_a_first_policy_of_a_hub_that_nobody_plays_is_pointed_out(reference, told):
    wanted = config(reference=reference, policy_ladder=[{"name": "bc", "init": "hub/policy"}])
    assert ("reference" in by_name(doctor.advice(wanted))) == told


def test_data_and_weights_are_looked_at(tmp_path):
    root = tmp_path / "data"
    weights = {"policy_ladder": [{"name": "bc", "init": str(tmp_path / "nope")}]}
    check = inputs_check(config(seed_root=root, **weights))
    assert check.level == "fail"
    assert f"seed_root: expected a folder, got none at {root}" in check.detail
    assert "policy_ladder[0].init: expected weights, got nothing at" in check.detail
    (tmp_path / "nope").touch()
    assert "expected the sidecar of a checkpoint" in inputs_check(config(**weights)).detail
    (root / "meta").mkdir(parents=True)
    assert "description of a LeRobotDataset" in inputs_check(config(seed_root=root)).detail
    (root / "meta/info.json").write_text('{"total_episodes": 1}')
    check = inputs_check(config(seed_root=root))
    assert (check.level, "its initial states are unknown" in check.detail) == ("ok", True)
    seed = SeedLedger(0).range("compare", 0, count=1).start
    page = {"episodes": [{"seed": seed, "partner": "p"}]}
    write_sealed_json(root / "meta/cadenza.json", page, kind="cadenza-dataset")
    check = inputs_check(config(seed_root=root))
    assert (check.level, "set another seed" in check.detail) == ("fail", True)
    check = inputs_check(config(seed_root=root, seed=1))
    assert (check.level, check.detail) == ("ok", f"local/d: {root}")
    check = inputs_check(config())
    assert (check.level, "unknown" in check.detail) == ("ok", False)
    assert "initial states are unknown" in inputs_check(lerobot_config()).detail
