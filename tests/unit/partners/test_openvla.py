import json
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, MissingExtraError
from cadenza.core.files import tree_digest
from cadenza.partners import OpenVLAPartner, PartnerSpec
from cadenza.partners.openvla import (
    ActionMap,
    ActionTokenizer,
    JointMap,
    PromptBuilder,
    action_statistics,
    unnormalize,
)

STATS = {
    "bridge": {
        "action": {
            "q01": [-1.0, -2.0, 0.0, -1.0, -1.0, -1.0, 0.0],
            "q99": [1.0, 2.0, 4.0, 1.0, 1.0, 1.0, 1.0],
            "mask": [True] * 6 + [False],
        }
    }
}
IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
OBS = {"agent": {"arm": {"state": np.zeros(3), "rgb": IMAGE}}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeBackend:
    """Says the given tokens and keeps what it was asked."""

    norm_stats = STATS

    def __init__(self, *tokens):
        self.tokens = tokens
        self.asked = []

    def generate(self, image, prompt, n):
        self.asked.append((image, prompt, n))
        return self.tokens[(len(self.asked) - 1) % len(self.tokens)]


def partner(backend=None, embodiment=None, **options):
    extra = {"uid": "arm", "instruction": "Push the Box", **options}
    spec = PartnerSpec("openvla_lora_specialist", 0, weights_uri="openvla/tiny", extra=extra)
    return OpenVLAPartner(spec, backend=backend, embodiment=embodiment)


def test_golden_tokens():
    tokenizer = ActionTokenizer()
    unit = tokenizer.decode(np.array([31999, 31872, 31744]))
    assert unit[0] == pytest.approx(-0.996078, abs=1e-6)
    assert abs(unit[1]) < 1e-12
    assert unit[2] == pytest.approx(0.996078, abs=1e-6)
    assert tokenizer.decode(np.array([5, 40000])).tolist() == unit[[2, 0]].tolist()
    assert tokenizer.encode(np.array([-1.0, 1.0, -7.0, 7.0])).tolist() == [31999, 31744] * 2


def test_round_trip_is_off_by_less_than_half_a_bin():
    tokenizer = ActionTokenizer()
    actions = np.random.default_rng(0).uniform(-1, 1, 1000)
    assert np.abs(tokenizer.decode(tokenizer.encode(actions)) - actions).max() <= 1 / 255 + 1e-12


def test_prompt_is_the_one_of_the_training_and_ends_in_one_space_token():
    prompts = PromptBuilder()
    assert (
        prompts.build("Push the Box")
        == "In: What action should the robot take to push the box?\nOut:"
    )
    assert prompts.close([1, 2], [1, 1]) == ([1, 2, 29871], [1, 1, 1])
    assert prompts.close([1, 29871], [0, 1]) == ([1, 29871], [0, 1])


def test_components_under_the_mask_are_scaled_to_their_quantiles():
    statistics = action_statistics(STATS, None)
    action = unnormalize(np.array([0.0, 1.0, -1.0, 0.5, 0.0, 0.0, 0.25]), statistics)
    assert action.tolist() == [0.0, 2.0, 0.0, 0.5, 0.0, 0.0, 0.25]
    without = {"q01": [0.0], "q99": [2.0]}
    assert unnormalize(np.array([0.5]), without).tolist() == [1.5]


@pytest.mark.parametrize("key", [None, "nowhere"])
def test_unknown_or_missing_dataset_lists_the_known_ones(key):
    with pytest.raises(ConfigurationError, match="'unnorm_key': expected one of a, b, got"):
        action_statistics({"b": {}, "a": {}}, key)


def test_partner_decodes_tokens_into_the_environments_action():
    # The tokens of u = ±0.996078 and 0; x of ±1 m, y of ±2 m, z of 0 ... 4 m.
    backend = FakeBackend([31999, 31744, 31872, 31872, 31872, 31872, 31744])
    vla = partner(backend, action_map="0*10,1,2,gripper")
    vla.reset(seed=0)
    action = vla.act(OBS)
    np.testing.assert_allclose(action, [-9.96078, 1.992157, 2.0, 2 * 0.996078 - 1], rtol=1e-5)
    image, prompt, count = backend.asked[0]
    assert image.tobytes() == IMAGE.tobytes()
    assert prompt.endswith("push the box?\nOut:")
    assert count == 7
    decode = vla.last_decode
    assert decode.tokens.tolist() == list(backend.tokens[0])
    np.testing.assert_allclose(decode.action[2], 2.0)
    vla.reset(seed=0)
    assert vla.last_decode is None


def test_slow_model_is_asked_once_per_hold():
    backend = FakeBackend([31872] * 7)
    vla = partner(backend, control_hz="20", policy_hz="6")  # ceil(20 / 6) = 4
    for _ in range(9):
        vla.act(OBS)
    assert len(backend.asked) == 3


def test_numbers_that_are_not_finite_hold_the_robot_and_its_gripper():
    class Jacobian:
        broken = False

        def __call__(self, channels):
            return np.full((6, 7), np.nan) if self.broken else np.eye(6, 7)

    jacobian = Jacobian()
    vla = partner(FakeBackend([31744] * 7), embodiment=JointMap(jacobian))
    grip = vla.act(OBS)[-1]
    assert grip == pytest.approx(2 * 0.996078 - 1, abs=1e-5)
    jacobian.broken = True
    assert vla.act(OBS).tolist() == [0.0] * 7 + [grip]
    assert vla.counts.not_finite == 1


def test_joint_map_moves_the_hand_as_asked_where_the_arm_can():
    rng = np.random.default_rng(1)
    jacobian = rng.normal(size=(6, 7))
    step = np.array([0.01, -0.02, 0.03, 0.1, 0.0, -0.1, 1.0])
    joints = JointMap(lambda channels: jacobian, damping=1e-6)(step, {})
    np.testing.assert_allclose(jacobian @ joints[:-1], step[:6], atol=1e-9)
    assert joints[-1] == 1.0
    singular = JointMap(lambda channels: np.zeros((6, 7)))(step, {})
    assert singular[:-1].tolist() == [0.0] * 7


@pytest.mark.parametrize("text", ["", "7", "x", "0*", "0;1", "-1"])
def test_malformed_action_map_is_refused(text):
    with pytest.raises(ConfigurationError, match="'action_map'"):
        ActionMap(text)


def test_image_of_another_kind_is_refused():
    vla = partner(FakeBackend([31872] * 7))
    for image, message in [
        (IMAGE[..., 0], r"\(H, W, 3\)"),
        (IMAGE / 255.0, "whole numbers 0 to 255"),
    ]:
        with pytest.raises(InputError, match=message):
            vla.act({"agent": {"arm": {"state": np.zeros(3), "rgb": image}}})
    with pytest.raises(InputError, match=r"channel 'rgb'.*got state"):
        vla.act({"agent": {"arm": {"state": np.zeros(3)}}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'revision'"),
        ({"revision": "main"}, "'revision'.*'main'"),
        ({"revision": COMMIT}, "'trust_remote_code'"),
        ({"revision": COMMIT, "trust_remote_code": "true"}, "'trust_remote_code'.*'true'"),
        ({"instruction": ""}, "'instruction'"),
    ],
    ids=str,
)
def test_code_from_elsewhere_runs_only_pinned_and_allowed(options, message):
    with pytest.raises(ConfigurationError, match=message):
        partner(**options)


class TinyVLA(nn.Module):
    """A language model of one layer with random weights, in the interface of transformers."""

    norm_stats = STATS

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image = nn.Linear(3, 16)
        self.embed = nn.Embedding(32064, 16)
        self.head = nn.Linear(16, 32064)
        for weights in self.parameters():
            nn.init.normal_(weights, generator=generator)

    def generate(self, *, input_ids, attention_mask, pixel_values, max_new_tokens, **asked):
        assert asked == {"min_new_tokens": max_new_tokens, "do_sample": False}
        assert attention_mask.shape == input_ids.shape
        tokens = input_ids
        for _ in range(max_new_tokens):
            seen = self.image(pixel_values.mean(dim=(-1, -2)))
            logits = self.head(self.embed(tokens).mean(dim=1) + seen)
            logits[:, :31744] = -torch.inf  # an untrained model would say anything
            tokens = torch.cat([tokens, logits.argmax(dim=-1, keepdim=True)], dim=1)
        return tokens


@pytest.fixture
def transformers(monkeypatch):
    """Stands in for the library; notes how models are loaded."""
    loads = []

    class Processor:
        def __call__(self, prompt, picture):
            pixels = torch.tensor(np.asarray(picture)).permute(2, 0, 1)[None] / 255
            ids = torch.tensor([[1, *prompt.encode()]])
            return {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "pixel_values": pixels,
            }

    def auto(make):
        def load(name, **options):
            loads.append((name, options))
            return make()

        return types.SimpleNamespace(from_pretrained=load)

    module = types.SimpleNamespace(
        loads=loads, AutoProcessor=auto(Processor), AutoModelForVision2Seq=auto(TinyVLA)
    )
    monkeypatch.setitem(sys.modules, "transformers", module)
    return module


ALLOWED = {"revision": COMMIT, "trust_remote_code": "yes", "device": "cpu", "dtype": "float32"}


def test_model_is_loaded_pinned_offline_and_without_pickle_and_then_acts(transformers):
    vla = partner(**ALLOWED)
    assert transformers.loads == []  # construction loads nothing
    vla.reset(seed=0)
    (_, of_processor), (name, of_model) = transformers.loads
    pinned = {"revision": COMMIT, "trust_remote_code": True, "local_files_only": True}
    assert name == "openvla/tiny"
    assert of_processor == pinned
    assert of_model == {**pinned, "torch_dtype": torch.float32, "use_safetensors": True}
    first = vla.act(OBS)
    assert first.shape == (7,)
    assert (vla.last_decode.tokens >= 31744).all()
    white = {"agent": {"arm": {"state": np.zeros(3), "rgb": np.full_like(IMAGE, 255)}}}
    assert vla.act(white).tobytes() != first.tobytes()
    again = partner(**ALLOWED)
    assert again.act(OBS).tobytes() == first.tobytes()


def test_local_folder_is_pinned_by_its_digest(transformers, monkeypatch, tmp_path):
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))
    folder = tmp_path / "vla"
    folder.mkdir()
    (folder / "model.py").write_text("print('hello')")

    def local(digest):
        options = {name: value for name, value in ALLOWED.items() if name != "revision"}
        extra = {"uid": "arm", "instruction": "push", **options}
        uri = "local://artifacts/vla"
        return OpenVLAPartner(
            PartnerSpec(
                "openvla_lora_specialist", 0, weights_uri=uri, extra=extra, weights_sha256=digest
            )
        )

    with pytest.raises(ConfigurationError, match="weights_sha256"):
        local(None)
    digest = tree_digest(folder)
    local(digest).reset()
    assert transformers.loads[0][0] == str(folder)
    (folder / "model.py").write_text("print('changed')")
    with pytest.raises(CheckpointError, match="expected weights with SHA-256"):
        local(digest).reset()


def test_adapter_brings_its_own_statistics(transformers, monkeypatch, tmp_path):
    merged = []

    def merge(model, folder, *, local_files_only):
        assert local_files_only
        merged.append(folder)
        return types.SimpleNamespace(merge_and_unload=lambda: model)

    module = types.SimpleNamespace(PeftModel=types.SimpleNamespace(from_pretrained=merge))
    monkeypatch.setitem(sys.modules, "peft", module)
    own = {"mine": {"action": {"q01": [5.0], "q99": [5.0]}}}
    monkeypatch.setenv("CADENZA_ARTIFACTS_ROOT", str(tmp_path))
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "dataset_statistics.json").write_text(json.dumps(own))
    options = {**ALLOWED, "adapter": "local://artifacts/adapter", "action_map": "0"}
    (folder / "adapter_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"expected adapter_model\.safetensors"):
        partner(**options).act(OBS)
    (folder / "adapter_model.safetensors").touch()
    with pytest.raises(CheckpointError, match="'adapter_sha256': expected the adapter's digest"):
        partner(**options).act(OBS)
    vla = partner(**options, adapter_sha256=tree_digest(folder))
    assert vla.act(OBS).tolist() == [5.0]
    assert merged == [str(folder)]
    with pytest.raises(CheckpointError):
        partner(**options | {"adapter": "local://artifacts/../elsewhere"}).act(OBS)


def test_absent_library_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="pip install 'transformers=="):
        partner(**ALLOWED).reset()
