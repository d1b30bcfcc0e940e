import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cadenza.core.strict_json import write_sealed_json
from cadenza.loop import doctor
from cadenza.loop.config import LoopConfig
from cadenza.loop.jobs import ray_runner
from cadenza.loop.orchestrator.preflight import refusals, store_found
from cadenza.loop.schedule import seed_range
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
    return by_name(doctor.examine(config=wanted, environ=environ, **place))


ABSENT = (
    "run: python environments/install.py environments/lerobot.txt --needs-header linux/input.h "
    "(8.5 GB), or set CADENZA_LEROBOT_PYTHON"
)
BROKEN = "remove that environment and install it again"
SERVER = "do not run its asynchronous-inference server (CVE-2026-25874); the loop never does"
ASKS = "import libero once by hand in LeRobot's environment and answer N"
LACKS = "install 'lerobot[libero]' into LeRobot's environment"
SCREEN = "export MUJOCO_GL=egl SDL_VIDEODRIVER=dummy"
OK, NONE = ("lerobot", "ok", ""), ("libero", "fail", LACKS)
FINE = [("libero", "ok", ""), ("screen", "ok", "")]


@pytest.mark.parametrize(
    ("installed", "wanted", "environ", "found"),
    [
        ("", None, {}, [("lerobot", "warn", ABSENT)]),
        ("", "aloha", {}, [("lerobot", "fail", ABSENT)]),
        (" ", None, {}, [("lerobot", "warn", BROKEN)]),
        (" ", "aloha", {}, [("lerobot", "fail", BROKEN)]),
        ("0.5.1 ", "aloha", {}, [("lerobot", "warn", SERVER)]),
        ("0.6 yes", None, {}, [OK, ("libero", "warn", ASKS), ("screen", "warn", SCREEN)]),
        ("0.6 yes", "libero", {"LIBERO_CONFIG_PATH": ".", "DISPLAY": ":0"}, [OK, *FINE]),
        ("0.6 ", "libero", {"SDL_VIDEODRIVER": "x", "MUJOCO_GL": "egl"}, [OK, NONE, FINE[1]]),
        (
            "0.6 ",
            "pusht",
            {"SDL_VIDEODRIVER": "x"},
            [OK, ("screen", "warn", "export MUJOCO_GL=egl")],
        ),
    ],
)
def test_what_lerobots_environment_lacks_fails_only_who_wants_it(
    installed, wanted, environ, found, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").touch()
    python = tmp_path / "python"
    if installed:
        release, libero = installed.split(" ")
        answer = {"lerobot": release or None, "torch": "2.9", "libero": bool(libero)}
        python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
        python.chmod(0o700)
    environ = {"HOME": "/nowhere", "CADENZA_LEROBOT_PYTHON": str(python), **environ}
    checks = doctor.lerobot_checks(environ, wanted=wanted and lerobot_config(wanted))
    assert [(check.name, check.level, check.fix or "") for check in checks] == found
    if not installed:  # and no interpreter is named
        assert doctor.lerobot_checks({"HOME": str(tmp_path)}, wanted=None)[0].fix == ABSENT


def check_of(name, wanted, environ=None):
    """Return one of the checks that refuse runs of a configuration."""
    checks = refusals(wanted, Path("cadenza.db"), Path("runs"), environ=environ or {})
    return doctor.tried(name, checks[name])


def inputs_check(wanted):
    return check_of("inputs", wanted)


def test_a_gpu_is_needed_only_by_a_harvest_on_one(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for enabled, device in ((True, "cuda:1"), (True, "cpu"), (False, "cuda")):
        wanted = lerobot_config(improve={"enabled": enabled, "device": device})
        check = examined(tmp_path, wanted)["compute"]
        fix = "set improve.device: cpu" if (enabled, device) == (True, "cuda:1") else None
        assert (check.level, check.fix) == ("fail" if fix else "warn", fix)


def test_ray_is_looked_for_at_the_address_that_is_set(monkeypatch):
    monkeypatch.setattr(ray_runner, "version", lambda _: "2.9")

    def found(address, environ):
        jobs = {"runner": "ray", "ray_address": address}
        check = check_of("ray", config(jobs=jobs), environ)
        return check.level, check.detail.removeprefix("2.9; ").partition(";")[0][:36]

    assert found(None, {}) == ("ok", "the cluster of this machine, or one ")
    assert found(None, {"RAY_ADDRESS": "auto"}) == ("ok", "auto")
    assert found("head", {"RAY_ADDRESS": "auto"}) == ("fail", "head: expected host:port")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert found(address, {}) == ("ok", address)
    assert found(address, {})[1].startswith(f"{address}: no answer")


def test_runs_in_the_store_are_counted(tmp_path):
    path = tmp_path / "cadenza.db"
    told = [store_found(path)]
    with JobStore(path) as store:
        for run in ("a", "b"):
            store.create_run(run, "{}")
            told.append(store_found(path))
    assert told == [f"none yet; the first run makes {path}", f"{path}: 1 run", f"{path}: 2 runs"]


@pytest.mark.parametrize(("program", "level"), [("sh", "ok"), ("/nowhere/tell", "fail")])
def test_the_hook_of_a_configuration_must_be_there_and_shows_no_key(program, level):
    notify = {"command": [program], "webhook": "https://hooks.example.com/S3CRET"}
    check = check_of("notify", config(notify=notify))
    assert (check.level, program in check.detail) == (level, True)
    assert "S3CRET" not in repr(check)
    assert check_of("notify", config()).detail == "nobody is told"


def test_configuration_is_read_or_each_of_its_problems_is_told(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text("run_name: r\nseed_dataset: local/d\nbudgets: {max_cycles: 4}\n")
    read, [check] = doctor.read_configuration(path)
    assert read == config(budgets={"max_cycles": 4})
    assert check.detail == f"{path}: at most 4 cycles of bc, bc_large on crossing"
    path.write_text("run_name: r\nseed_dataset: 3\nbudgets: {max_cycles: -1}\n")
    read, checks = doctor.read_configuration(path)
    assert read is None
    assert [check.detail.startswith(f"{path}: ") for check in checks] == [True, True]


@pytest.mark.parametrize(
    ("free_gib", "native", "theirs"),
    [(0.99, "fail", "fail"), (1, "warn", "warn"), (5, "ok", "warn"), (30, "ok", "ok")],
)
def test_disk_space_is_judged_by_what_the_back_end_needs(
    free_gib, native, theirs, tmp_path, monkeypatch
):
    usage = SimpleNamespace(free=int(free_gib * 2**30))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert examined(tmp_path, config())["disk"].level == native
    assert examined(tmp_path, lerobot_config())["disk"].level == theirs
    place = {"workdir": Path("/proc/runs"), "store": tmp_path / "cadenza.db"}
    check = by_name(doctor.examine(config=config(), environ={}, **place))["disk"]
    assert (check.level, "expected a folder to write to" in check.detail) == ("fail", True)


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "fail")]
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
    assert "secret" not in repr(check)


def test_a_configuration_must_find_its_rules_and_its_data(tmp_path):
    wanted = config(constitution=tmp_path / "rules.yaml", seed_root=tmp_path / "data")
    found = examined(tmp_path, wanted).values()
    # no rules allow its commands
    assert {check.name for check in found if check.level == "fail"} == {
        *("constitution", "back end", "inputs")
    }


def test_lerobot_is_looked_for_where_the_given_variables_say(tmp_path, monkeypatch):
    monkeypatch.setenv("CADENZA_LEROBOT_PYTHON", "/bin/sh")  # of this process: nobody asks it
    wanted = lerobot_config("pusht", seed_dataset="lerobot/pusht")
    found = examined(tmp_path, wanted)
    assert (found["lerobot"].fix, found["back end"].level) == (ABSENT, "ok")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 9\n")
    python.chmod(0o700)
    asked = examined(tmp_path, wanted, {"CADENZA_LEROBOT_PYTHON": str(python)})
    assert asked["back end"].level == "fail"
    assert str(python) in asked["back end"].detail


@pytest.mark.parametrize(("reference", "told"), [(None, True), ("none", False), ("a/b", False)])
def test_a_first_policy_of_a_hub_that_nobody_plays_is_pointed_out(reference, told):
    wanted = config(reference=reference, policy_ladder=[{"name": "bc", "init": "hub/policy"}])
    assert ("reference" in by_name(doctor.advice(wanted))) == told
    later = [{"name": "bc"}, {"name": "bc_large", "init": "hub/policy"}]
    found = by_name(doctor.advice(config(reference=reference, policy_ladder=later)))
    assert ("reference" in found) == told
    assert doctor.advice(config()) == []
    [check] = doctor.advice(config(improve={"enabled": True}))
    assert (check.name, check.level) == ("harvest", "warn")


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
    seed = seed_range(0, "compare", 0, count=1).start
    page = {"episodes": [{"seed": seed, "partner": "p"}]}
    write_sealed_json(root / "meta/cadenza.json", page, kind="cadenza-dataset")
    check = inputs_check(config(seed_root=root))
    assert (check.level, "set another seed" in check.detail) == ("fail", True)
    check = inputs_check(config(seed_root=root, seed=1))
    assert (check.level, check.detail) == ("ok", f"local/d: {root}")
    check = inputs_check(config())
    assert (check.level, "unknown" in check.detail) == ("ok", False)
    assert "initial states are unknown" in inputs_check(lerobot_config()).detail
