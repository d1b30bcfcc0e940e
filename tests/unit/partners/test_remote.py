"""Policies in another process; what the other environment has installed is made up here."""

import io
import os
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, MissingExtraError
from cadenza.core.files import tree_digest
from cadenza.partners import PartnerSpec, load_partner
from cadenza.partners.policy_process import MAX_HEADER, WireError, pack, unpack
from cadenza.partners.remote import PolicyProcess, PolicyProcessError, close_processes
from tests.foreign_policies import install_foreign_python

COMMIT = "0123456789abcdef0123456789abcdef01234567"
STATE = np.array([0.5, -1.0, 2.0])
OBS = {"agent": {"arm": {"state": STATE, "rgb": np.full((4, 6, 3), 51, np.uint8)}}}


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """Artifacts with one folder, and a Python that has LeRobot and CrossFormer."""
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    python = install_foreign_python(tmp_path / "env")
    monkeypatch.setenv("CADENZA_LEROBOT_PYTHON", str(python))
    monkeypatch.setenv("CADENZA_CROSSFORMER_PYTHON", str(python))
    yield folder
    close_processes()


def partner(name, uri="local://artifacts/policy", digest=None, **options):
    extra = {"uid": "arm", **options}
    return load_partner(PartnerSpec(name, 0, weights_uri=uri, extra=extra, weights_sha256=digest))


def test_message_survives_the_wire():
    arrays = {
        "state": np.linspace(0, 1, 3, dtype=np.float32),
        "rgb": np.arange(12, dtype=np.uint8).reshape(2, 2, 3)[:, ::-1],
        "none": np.zeros((0, 2)),
    }
    data = memoryview(pack({"seed": 3}, arrays))
    place = [0]

    def read(size):
        place[0] += size
        return bytes(data[place[0] - size : place[0]])

    fields, back = unpack(read)
    assert fields == {"seed": 3}
    assert place[0] == len(data)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def header(text):
    return len(text).to_bytes(4, "big") + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        (MAX_HEADER + 1).to_bytes(4, "big"),
        header("[]"),
        header("{}}"),
        header('{"fields": {}, "arrays": [{"name": "a", "dtype": "float64"}]}'),
        header('{"fields": {}, "arrays": [{"name": "a", "dtype": "object", "shape": [1]}]}'),
        header('{"fields": {}, "arrays": [{"name": "a", "dtype": "bool", "shape": [-1]}]}'),
        header('{"fields": {}, "arrays": [{"name": "a", "dtype": "bool", "shape": [268435457]}]}'),
    ],
)
def test_malformed_message_is_refused_before_its_arrays_are_read(data):
    stream = io.BytesIO(data)
    with pytest.raises(WireError, match="expected"):
        unpack(stream.read)


def test_lerobot_policy_acts_on_named_inputs_and_images_from_zero_to_one():
    arm = partner(
        "lerobot_policy",
        inputs="observation.state=state, observation.images.front=rgb",
        instruction="lift",
    )
    arm.reset(seed=1)
    # The made-up policy says [state sum, image mean, length of the task, seed] and counts steps.
    first, second = arm.act(OBS), arm.act(OBS)
    np.testing.assert_allclose(first, [1.5, 0.2, 4.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(second, [2.5, 1.2, 5.0, 1.0], rtol=1e-6)
    assert arm.counts.plans == 1


def test_sampled_plans_get_seeds_of_the_episode():
    arm = partner("lerobot_policy", replan_steps="1")
    seeds = []
    for _ in range(2):
        arm.reset(seed=7)
        seeds.append([arm.act(OBS, deterministic=False)[3] for _ in range(3)])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_partners_of_one_policy_share_its_process_and_each_row_plans_alone():
    first, second = partner("lerobot_policy"), partner("lerobot_policy")
    pid = first.act(OBS)[2]  # what the made-up policy says without a task
    batch = {"agent": {"arm": {"state": np.stack([STATE, 2 * STATE])}}}
    action = second.act(batch)
    assert action[:, 0].tolist() == [1.5, 3.0]
    assert action[:, 2].tolist() == [pid, pid]


def test_crossformer_gets_images_of_its_size_and_scaled_proprioception():
    arm = partner(
        "crossformer_zero_shot",
        inputs="image_primary=rgb,proprio_single=state",
        instruction="lift",
        head="single_arm",
        dataset="bridge_dataset",
    )
    # The made-up model says [image mean, sum of proprioception, length of the text, seed],
    # times the standard deviation 2, plus the mean 1.
    action = arm.act(OBS)
    proprio = ((STATE - 1.0) / 2.0).sum()
    np.testing.assert_allclose(action, [103.0, 2 * proprio + 1, 9.0, 1.0], rtol=1e-6)


def test_folder_is_checked_against_the_spec(world):
    digest = tree_digest(world)
    assert partner("lerobot_policy", digest=digest).act(OBS).shape == (4,)
    with pytest.raises(CheckpointError, match="expected weights with SHA-256 0000"):
        partner("lerobot_policy", digest="0" * 64).reset()
    with pytest.raises(CheckpointError, match="folder not found"):
        partner("lerobot_policy", uri="local://artifacts/nothing").reset()


def test_repository_needs_a_commit_and_is_loaded_at_it():
    with pytest.raises(ConfigurationError, match=r"'revision'.*'main'"):
        partner("lerobot_policy", uri="someone/policy", revision="main").reset()
    partner("lerobot_policy", uri="someone/policy", revision=COMMIT).reset()


def test_without_an_interpreter_the_variable_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("CADENZA_LEROBOT_PYTHON")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(MissingExtraError, match="CADENZA_LEROBOT_PYTHON"):
        partner("lerobot_policy").reset()
    no_program = tmp_path / "text"
    no_program.write_text("not to be run")
    monkeypatch.setenv("CADENZA_LEROBOT_PYTHON", str(no_program))
    with pytest.raises(PolicyProcessError, match="Permission denied"):
        partner("lerobot_policy").reset()


def test_images_go_as_bytes_whatever_type_holds_them():
    arm = partner("lerobot_policy", inputs="observation.state=state,observation.images.front=rgb")
    image = torch.full((4, 6, 3), 51, dtype=torch.uint8)
    action = arm.act({"agent": {"arm": {"state": STATE, "rgb": image}}})
    assert action[1] == pytest.approx(0.2)
    with pytest.raises(InputError, match="whole numbers 0 to 255"):
        partner("crossformer_zero_shot").act({"agent": {"arm": {"rgb": np.full((4, 6, 3), 0.2)}}})


def test_position_targets_are_held_where_no_plan_speaks():
    late = {"latency_ticks": "4", "replan_steps": "7"}
    for hold, wanted in [("zero", 0.0), ("last", 3.5)]:
        arm = partner("lerobot_policy", hold=hold, **late)
        # Three actions from tick 4 on, and nothing after them.
        played = [float(arm.act(OBS)[0]) for _ in range(8)]
        assert played == pytest.approx([0, 0, 0, 0, 1.5, 2.5, 3.5, wanted])
    with pytest.raises(ConfigurationError, match="'hold'"):
        partner("lerobot_policy", hold="still")


@pytest.mark.parametrize("inputs", ["", "state", "=state", "observation.state="])
def test_malformed_inputs_are_refused(inputs):
    with pytest.raises(ConfigurationError, match="'inputs'"):
        partner("lerobot_policy", inputs=inputs)


def test_policy_that_needs_a_history_is_refused(world):
    (world / "config.json").write_text('{"n_obs_steps": 2}')
    with pytest.raises(PolicyProcessError, match=r"plans from one observation.*n_obs_steps = 2"):
        partner("lerobot_policy").reset()


def test_what_a_failing_policy_said_last_is_in_the_error():
    arm = partner("lerobot_policy", inputs="observation.state=state")
    arm.reset()
    with pytest.raises(PolicyProcessError, match=r"(?s)ValueError: no NaN.*said before"):
        arm.act({"agent": {"arm": {"state": np.array([np.nan])}}})
    assert arm.act(OBS)[0] == 1.5  # the next plan starts it anew


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return sys.executable, str(path)


def test_process_that_ends_hangs_or_chatters_is_an_error(tmp_path):
    for text, message in [
        ("import sys; sys.exit('out of memory')", "ended.*out of memory"),
        ("print('hello, world')", "malformed message"),
    ]:
        with pytest.raises(PolicyProcessError, match=message):
            PolicyProcess(program(tmp_path, text))
    scripts = Path(sys.modules[pack.__module__].__file__).parent
    silent = f"""
        import sys, time
        sys.path.insert(0, {os.fspath(scripts)!r})
        from policy_process import pack
        sys.stdout.buffer.write(pack({{"ready": True}}, {{}}))
        sys.stdout.buffer.flush()
        time.sleep(60)
    """
    process = PolicyProcess(program(tmp_path, silent))
    with pytest.raises(PolicyProcessError, match=r"no answer within 0\.05 s"):
        process.plan({}, instruction="", seed=0, timeout_s=0.05)
    assert not process.runs
