import shutil
import socket
import sqlite3
from types import SimpleNamespace

import pytest

from cadenza.core.sealed_json import write_sealed_json
from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.config import LoopConfig
from cadenza.loop.doctor import lerobot, machine, read_configuration
from cadenza.loop.doctor.configuration import inputs_check
from cadenza.loop.doctor.machine import store_check
from cadenza.loop.orchestrator.seeds import SeedLedger
from cadenza.loop.store import JobStore


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
    return by_name(machine.examine(config=wanted, environ=environ, **place))


def fake_python(folder, answer):
    """Return an interpreter that says ``answer``, whatever it is asked."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n")
    python.chmod(0o755)
    return {"CADENZA_LEROBOT_PYTHON": str(python), "HOME": str(folder)}


@pytest.mark.parametrize(("wanted", "level"), [(None, "warn"), (lerobot_config(), "fail")])
def test_a_missing_lerobot_fails_only_who_wants_it(wanted, level, tmp_path):
    [check] = lerobot.lerobot_checks({"HOME": str(tmp_path)}, wanted=wanted)
    assert check.level == level
    assert "environments/install.py" in check.fix


def test_libero_must_be_installed_and_configured_for_who_wants_it(tmp_path):
    missing = fake_python(tmp_path, '{"lerobot": "0.6.0", "libero": false}')
    check = by_name(lerobot.lerobot_checks(missing, wanted=lerobot_config()))["libero"]
    assert (check.level, check.detail.startswith("not installed")) == ("fail", True)
    assert "libero" not in by_name(lerobot.lerobot_checks(missing, wanted=lerobot_config("pusht")))
    there = fake_python(tmp_path, '{"lerobot": "0.6.0", "libero": true}')
    check = by_name(lerobot.lerobot_checks(there, wanted=lerobot_config()))["libero"]
    assert (check.level, "asks questions" in check.detail) == ("fail", True)
    (tmp_path / ".libero").mkdir()
    (tmp_path / ".libero" / "config.yaml").touch()
    assert by_name(lerobot.lerobot_checks(there, wanted=None))["libero"].level == "ok"


def test_an_older_store_is_brought_up_to_date_in_a_copy(tmp_path):
    path = tmp_path / "cadenza.db"
    JobStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    assert "the next run brings it up to date" in store_check(path).detail
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM alembic_version").fetchall() == [("0001",)]
    connection.close()


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
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert "may not write" in examined(tmp_path, config())["disk"].detail


def on_ray(**jobs):
    return config(jobs={"runner": "ray", **jobs}, data={"initial_episodes": 4})


def test_a_cluster_must_answer_at_its_address(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda _: "2.60.0")
    assert "started for the run" in machine.ray_check(on_ray(), {}).detail
    assert machine.ray_check(on_ray(ray_address="auto"), {}).level == "ok"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for there in (address, f"ray://{address}"):
            assert machine.ray_check(on_ray(ray_address=there), {}).level == "ok"
        assert machine.ray_check(on_ray(), {"RAY_ADDRESS": address}).detail.endswith(address)
    with socket.socket() as nobody:  # has a port, and listens to none
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        check = machine.ray_check(on_ray(ray_address=address), {})
    assert (check.level, f"{address}: nobody answers" in check.detail) == ("fail", True)
    assert "jobs.ray_address" in check.fix
    for odd in ("head-node", "head:port", "ray://[head"):
        assert machine.ray_check(on_ray(ray_address=odd), {}).detail.endswith(
            f"{odd}: expected host:port"
        )


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


def test_a_configuration_that_cannot_be_read_is_told_problem_by_problem(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(
        "run_name: r\nseed_dataset: local/d\n"
        "curation: {enabled: true}\ntrain: {extra_args: [--x]}\n"
    )
    settings, checks = read_configuration(path)
    assert settings is None
    assert [check.level for check in checks] == ["fail", "fail"]
    assert checks[0].detail.startswith(f"{path}: line 4, column 21: train.extra_args: expected no")
    assert "line 3, column 21: curation.enabled: expected false without a lang" in checks[1].detail
    settings, checks = read_configuration(tmp_path)
    assert (settings, checks[0].detail) == (
        None,
        f"{tmp_path}: expected a YAML file, got a folder; name a file in it",
    )


def test_a_harvest_that_no_training_reads_is_told(tmp_path):
    path = tmp_path / "loop.yaml"
    for steps, told in (("", True), (", adapt_steps: 5", False)):
        text = f"run_name: r\nseed_dataset: local/d\nimprove: {{enabled: true{steps}}}\n"
        path.write_text(text)
        checks = by_name(read_configuration(path)[1])
        assert ("harvest" in checks) == told
        assert not told or checks["harvest"].detail.startswith("improve.adapt_steps is 0: successe")


def test_doctor_tells_which_rules_hold_and_that_named_ones_are_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = config(constitution="configs/constitution.yaml")
    found = [examined(tmp_path, wanted)["constitution"] for wanted in (config(), named)]
    assert found[0].detail.startswith("the shipped ones, SHA-256 ")
    place = f"{tmp_path}/configs/constitution.yaml"
    assert (found[1].level, f"got none at {place}" in found[1].detail) == ("fail", True)
    (tmp_path / "configs").mkdir()
    shutil.copy(shipped_config("loop/constitution.yaml"), place)
    assert examined(tmp_path, named)["constitution"].detail.startswith(f"{place}, SHA-256 ")
