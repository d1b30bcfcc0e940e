import importlib.metadata
import shutil
import socket
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cadenza.core.errors import CadenzaError, ConfigurationError
from cadenza.core.sealed_json import write_sealed_json
from cadenza.core.shipped_configs import shipped_config
from cadenza.loop.config import LoopConfig
from cadenza.loop.doctor import lerobot, machine, read_configuration
from cadenza.loop.doctor.check import Check, tried
from cadenza.loop.doctor.configuration import back_end_check, inputs_check
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


def fake_python(folder, answer):
    """Return an interpreter that says ``answer``, whatever it is asked."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n")
    python.chmod(0o755)
    return {"CADENZA_LEROBOT_PYTHON": str(python), "HOME": str(folder)}


def test_an_expected_error_becomes_a_failure_with_what_to_do():
    def fail():
        raise CadenzaError("expected\n  a file")

    check = tried("rules", "write one", fail)
    assert check == Check(name="rules", level="fail", detail="expected a file", fix="write one")


@pytest.mark.parametrize(("wanted", "level"), [(None, "warn"), (lerobot_config(), "fail")])
def test_a_missing_lerobot_fails_only_who_wants_it(wanted, level, tmp_path):
    [check] = lerobot.lerobot_checks({"HOME": str(tmp_path)}, wanted=wanted)
    assert check.level == level
    assert "environments/install.py" in check.fix


def test_an_environment_without_lerobot_is_told(tmp_path):
    environ = fake_python(tmp_path, '{"lerobot": null}')
    [check] = lerobot.lerobot_checks(environ, wanted=None)
    assert (check.level, "no LeRobot there" in check.detail) == ("warn", True)
    environ = fake_python(tmp_path, "a song")
    assert "no LeRobot there" in lerobot.lerobot_checks(environ, wanted=None)[0].detail


@pytest.mark.parametrize(
    ("version", "level"), [("0.4.4", "warn"), ("0.5.1", "warn"), ("0.6.0", "ok")]
)
def test_releases_with_the_unsafe_server_are_named(version, level, tmp_path):
    environ = fake_python(tmp_path, f'{{"lerobot": "{version}", "torch": "2", "libero": false}}')
    check = by_name(lerobot.lerobot_checks(environ, wanted=None))["lerobot"]
    assert check.level == level
    assert ("CVE-2026-25874" in (check.fix or "")) == (level == "warn")


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


def test_simulators_without_a_screen_need_two_variables(tmp_path):
    environ = fake_python(tmp_path, '{"lerobot": "0.6.0", "libero": false}')
    check = by_name(lerobot.lerobot_checks(environ, wanted=None))["screen"]
    assert (check.level, check.fix) == ("warn", "export MUJOCO_GL=egl SDL_VIDEODRIVER=dummy")
    environ |= {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}
    assert by_name(lerobot.lerobot_checks(environ, wanted=None))["screen"].level == "ok"


def test_a_store_is_looked_at_and_never_made(tmp_path):
    path = tmp_path / "cadenza.db"
    assert "none yet" in store_check(path).detail
    assert not path.exists()
    JobStore(path).close()
    assert store_check(path).detail == f"{path}: 0 runs"
    assert store_check(f"sqlite:///{path}").level == "ok"


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


def test_a_store_that_cannot_be_brought_up_to_date_fails(tmp_path):
    path = tmp_path / "cadenza.db"
    sqlite3.connect(path).execute("CREATE TABLE runs (id INTEGER)").connection.close()
    with pytest.raises(CadenzaError):
        store_check(path)


def test_disk_space_is_judged_by_what_the_back_end_needs(tmp_path, monkeypatch):
    for free_gib, native, lerobot_level in (
        (0.5, "fail", "fail"),
        (10, "ok", "warn"),
        (40, "ok", "ok"),
    ):
        usage = SimpleNamespace(free=int(free_gib * 2**30))
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert machine._disk(tmp_path / "new" / "runs", "native").level == native
        assert machine._disk(tmp_path, "lerobot").level == lerobot_level
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert "may not write" in machine._disk(tmp_path, "native").detail


def test_a_folder_of_runs_must_have_room_to_be_one(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for workdir in (file, file / "runs"):
        check = machine._disk(workdir, "native")
        assert (check.level, check.fix) == (
            "fail",
            "name another folder in workdir, or with --workdir",
        )
        assert check.detail.endswith(f"expected a folder, or room for one, got the file {file}")


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


def test_ray_is_looked_at_only_for_who_wants_it(tmp_path, monkeypatch):
    def missing(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(machine, "version", missing)
    for settings, levels in ((on_ray(), ["fail"]), (config(), []), (None, [])):
        checks = machine.examine(
            config=settings,
            store=tmp_path / "cadenza.db",
            workdir=tmp_path,
            environ={"HOME": str(tmp_path)},
        )
        found = [check for check in checks if check.name == "ray"]
        assert [check.level for check in found] == levels
        assert all("cadenza[ray]" in check.fix for check in found)


def test_an_environment_that_cannot_be_made_fails(monkeypatch):
    class Unmade:
        name = "lerobot"

        @property
        def capabilities(self):
            raise ConfigurationError("expected an environment that it can make, got none")

    monkeypatch.setattr("cadenza.loop.backends.registry.make_backend", lambda _: Unmade())
    monkeypatch.setattr(
        "cadenza.loop.orchestrator.foreseen.require_commands_allowed", lambda *_: None
    )
    check = back_end_check(config())
    assert (check.level, "an environment that it can make" in check.detail) == ("fail", True)


def test_shared_memory_may_be_missing_or_small(tmp_path, monkeypatch):
    assert machine._shared_memory(tmp_path / "shm").detail == f"no {tmp_path / 'shm'}"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 << 20))
    assert machine._shared_memory(tmp_path).level == "warn"


def test_keys_are_told_by_provider_and_never_by_value():
    environ = {"GOOGLE_API_KEY": "secret", "ANTHROPIC_API_KEY": "secret", "OPENAI_API_KEY": ""}
    check = machine._language_model(None, environ)
    assert check.level == "ok"
    assert check.detail.startswith("keys for anthropic, gemini;")
    assert machine._language_model(None, {}).level == "warn"


@pytest.mark.parametrize(
    ("llm", "environ", "level"),
    [
        ("openai:m@http://127.0.0.1:1", {}, "ok"),
        ("openai:m", {"OPENAI_BASE_URL": "http://127.0.0.1:1"}, "ok"),
        ("openai:m", {"OPENAI_API_KEY": "secret"}, "ok"),
        ("openai:m", {"ANTHROPIC_API_KEY": "secret"}, "warn"),
        ("anthropic:m", {"ANTHROPIC_AUTH_TOKEN": "secret"}, "ok"),
        ("anthropic:m", {}, "warn"),
        ("gemini:m", {}, "fail"),  # its client cannot even be made
    ],
)
def test_the_model_of_a_configuration_needs_a_key_unless_the_server_is_ones_own(
    llm, environ, level, monkeypatch
):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    check = machine._language_model(config(llm=llm), environ)
    assert check.level == level
    assert (check.fix is None) == (level != "warn")
    assert "secret" not in check.model_dump_json()


def test_the_use_of_the_model_and_its_limit_are_told():
    prices = {"usd_per_million_input": 3.0, "usd_per_million_output": 15.0}
    wanted = config(
        llm="openai:m@http://host/v1",
        curation={"enabled": True},
        llm_calls={**prices, "max_cost_usd": 2.5},
    )
    assert machine._language_model(wanted, {}).detail == (
        "openai:m@http://host/v1 for curated proposals; no keys; at most 2.5 US dollars a run"
    )
    plain = machine._language_model(config(llm="openai:m@http://host/v1"), {}).detail
    assert plain == "openai:m@http://host/v1 for proposals; no keys; no limit on costs"


def test_a_configuration_must_find_its_rules_and_its_data(tmp_path):
    rules = tmp_path / "rules.yaml"
    checks = machine.examine(
        config=config(constitution=rules, seed_root=tmp_path / "data", backend="native"),
        store=tmp_path / "cadenza.db",
        workdir=tmp_path,
        environ={"HOME": str(tmp_path)},
    )
    failed = {check.name for check in checks if check.level == "fail"}
    assert failed == {"constitution", "back end", "inputs"}  # no rules allow its commands


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


def test_a_configuration_that_can_be_read_is_summed_up():
    path = shipped_config("loop/demo.yaml")
    settings, [check] = read_configuration(path)
    assert settings == LoopConfig.from_yaml(path)
    assert (check.level, check.detail) == (
        "ok",
        f"{path}: at most 4 cycles of bc, bc_large on crossing",
    )


def test_first_weights_of_a_hub_that_are_never_played_are_told(tmp_path):
    ladder = "policy_ladder: [{name: act, init: lerobot/act}]"
    text = f"run_name: r\nbackend: lerobot\nseed_dataset: lerobot/d\n{ladder}\n"
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    (check,) = (check for check in read_configuration(path)[1] if check.name == "reference")
    assert "lerobot/act of a hub is not played" in check.detail
    path.write_text(f"{text}reference: none\n")
    assert [check.name for check in read_configuration(path)[1]] == ["configuration"]


@pytest.mark.parametrize(
    ("improve", "names"),
    [
        ("{enabled: true}", ["configuration", "harvest"]),
        ("{enabled: true, adapt_steps: 5}", ["configuration"]),
        ("{enabled: false}", ["configuration"]),
    ],
)
def test_a_harvest_that_no_training_reads_is_told(improve, names, tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(f"run_name: r\nseed_dataset: local/d\nimprove: {improve}\n")
    _, checks = read_configuration(path)
    assert [check.name for check in checks] == names
    if "harvest" in names:
        assert checks[1].level == "warn"
        assert checks[1].detail.startswith("improve.adapt_steps is 0: successes are collected, and")
        assert checks[1].fix == "set improve.adapt_steps, or improve.enabled: false"


def test_what_a_run_would_be_refused_for_fails(tmp_path):
    def failed(**changes):
        checks = machine.examine(
            config=config(**changes),
            store=tmp_path / "cadenza.db",
            workdir=tmp_path,
            environ={"HOME": str(tmp_path)},
        )
        return {check.name: check.detail for check in checks if check.level == "fail"}

    assert failed(data={"initial_episodes": 4}) == {}
    found = failed(train={"steps": 200_001})  # and nobody says how many episodes to collect
    assert set(found) == {"constitution", "back end"}
    assert "train.steps: expected at most 200000, got 200001" in found["constitution"]
    assert "data.initial_episodes: expected a number without seed_root" in found["back end"]
    rules = tmp_path / "rules.yaml"
    rules.write_text("allowed_programs: [lerobot-eval]\n")
    found = failed(data={"initial_episodes": 4}, constitution=rules)
    assert "allowed_programs: seed_dataset, data: " in found["back end"]


def test_a_harvest_on_a_gpu_needs_one(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wanted = lerobot_config(improve={"enabled": True, "device": "cuda"})
    assert machine._compute(wanted).level == "fail"
    assert machine._compute(None).level == "warn"


def test_the_question_to_the_other_interpreter_is_answered_by_a_real_one():
    done = subprocess.run(
        [sys.executable, "-I", "-c", lerobot._QUESTION], capture_output=True, check=True
    )
    assert b'"lerobot": null' in done.stdout


def test_doctor_tells_which_rules_hold_and_that_named_ones_are_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = config(constitution="configs/constitution.yaml")
    assert machine._rules(config()).detail.startswith("the shipped ones, SHA-256 ")
    missing = tried("constitution", None, lambda: machine._rules(named))
    assert missing.level == "fail"
    place = f"{tmp_path}/configs/constitution.yaml"
    assert missing.detail.startswith(f"constitution: expected a file of rules, got none at {place}")
    (tmp_path / "configs").mkdir()
    shutil.copy(shipped_config("loop/constitution.yaml"), tmp_path / "configs/constitution.yaml")
    assert machine._rules(named).detail.startswith(f"{place}, SHA-256 ")
