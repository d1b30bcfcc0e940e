"""Whether dataset, policy and environment fit, on descriptions as LeRobot writes them."""

import json
from pathlib import Path

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.backends.lerobot_probe import (
    Interface,
    dataset_interface,
    environment_interface,
    require_agreement,
)
from tests.unit.loop.backends.test_lerobot_probe import environment

IMAGE = "observation.image"
NAMES = ["height", "width", "channels"]


def picture(size, **changes):
    return {"dtype": "video", "shape": [size, size, 3], "names": NAMES, **changes}


def dataset(folder, features):
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta" / "info.json").write_text(json.dumps({"features": features}))
    return folder


def policy(folder, **config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def shown(size):
    shapes = {IMAGE: (3, size, size), "observation.state": (2,), "action": (2,)}
    return Interface(name="environment pusht", shapes=shapes)


FEATURES = {
    IMAGE: picture(384),
    "observation.state": {"dtype": "float32", "shape": [2], "names": None},
    "action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
}


def test_dataset_shapes_are_channels_first_and_bookkeeping_is_left_out(tmp_path):
    first = {**FEATURES, "observation.depth": picture(4, shape=[1, 4, 5], names=["c", "h", "w"])}
    assert dataset_interface(dataset(tmp_path, first)).shapes == {
        IMAGE: (3, 384, 384),
        "observation.depth": (1, 4, 5),
        "observation.state": (2,),
        "action": (2,),
    }


def test_large_pictures_do_not_fit_an_environment_of_small_ones(tmp_path):
    data = dataset_interface(dataset(tmp_path, FEATURES))
    require_agreement(data, shown(384))
    with pytest.raises(
        ConfigurationError,
        match=r"observation.image: expected the shape 3x384x384 of dataset .*, got 3x96x96 of env",
    ):
        require_agreement(data, shown(96))


def test_environment_is_looked_at_once_for_the_same_words(tmp_path):
    place, asked = environment(tmp_path), []

    def ask(command):
        asked.append(command)
        result = Path(command[-1].removeprefix("--result-json="))
        result.parent.mkdir(exist_ok=True)
        result.write_text(json.dumps({"observation": {IMAGE: [3, 96, 96]}, "action": [2]}))
        return ""

    words = ("--env-type=pusht", "--task=PushT-v0")
    for _ in range(2):
        found = environment_interface(place, words, ask=ask)
        assert found.shapes == {IMAGE: (3, 96, 96), "action": (2,)}
    assert len(asked) == 1
    assert asked[0][3:-1] == ["describe", *words]
    environment_interface(place, (*words, "--env.obs_type=pixels"), ask=ask)
    assert len(asked) == 2
