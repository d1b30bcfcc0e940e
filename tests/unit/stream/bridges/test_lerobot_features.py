"""Which columns of a dataset the fields of an episode become, and with which values."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot_features import DONE, SUCCESS, Feature, features_of
from cadenza.stream.layout import BOOKKEEPING, Field


def state(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Field:
    return Field(name=name, shape=shape, dtype=dtype, kind="state")


def vector(source: str, size: int = 2, dtype: str = "float32") -> Feature:
    return Feature(key="x", source=source, shape=(size,), dtype=dtype)


def episode(**steps: np.ndarray) -> Episode:
    return Episode(steps=steps, states={}, number=7)


def test_fields_get_the_names_that_policies_look_for() -> None:
    fields = [
        state("obs.robot.qpos", (7,)),
        state("obs.sensor.front.color", (48, 64, 4), "uint8"),
        state("obs.sensor.front.depth", (48, 64)),
        Field(name="actions", shape=(7,), dtype="float32"),
        *BOOKKEEPING,
    ]
    found = {f.key: (f.source, f.shape, f.dtype) for f in features_of(fields, success=True)}
    assert found == {
        "observation.robot.qpos": ("obs.robot.qpos", (7,), "float32"),
        "observation.images.front": ("obs.sensor.front.color", (48, 64, 3), "image"),
        "observation.sensor.front.depth": ("obs.sensor.front.depth", (48, 64), "float32"),
        "action": ("actions", (7,), "float32"),
        "next.reward": ("rewards", (1,), "float32"),
        "next.terminated": ("terminated", (1,), "bool"),
        "next.truncated": ("truncated", (1,), "bool"),
        "segment_id": ("segment_id", (1,), "int64"),
        "policy_version": ("policy_version", (1,), "int64"),
        "next.done": (DONE, (1,), "bool"),
        "next.success": (SUCCESS, (1,), "bool"),
    }


@pytest.mark.parametrize("name", ["obs", "obs.robot.qpos", "state"])
def test_only_state_without_colours_is_the_state(name: str) -> None:
    features = features_of([state(name, (4,)), state("obs.camera", (8, 8, 3), "uint8")])
    keys = [feature.key for feature in features]
    assert keys == ["observation.state", "observation.images.camera", "next.done"]


def test_state_values_are_those_before_each_action() -> None:
    one = Episode(steps={}, states={"obs": np.arange(8.0, dtype=np.float32).reshape(4, 2)})
    np.testing.assert_array_equal(vector("obs").values(one), [[0, 1], [2, 3], [4, 5]])


def test_colours_lose_their_transparency() -> None:
    image = np.arange(2 * 4 * 5 * 4, dtype=np.uint8).reshape(2, 4, 5, 4)
    feature = Feature(key="x", source="camera", shape=(4, 5, 3), dtype="image")
    np.testing.assert_array_equal(feature.values(episode(camera=image)), image[..., :3])


def test_success_and_done_mark_the_last_step() -> None:
    steps = {"a": np.zeros(3, dtype=np.float32)}
    done = Feature(key="next.done", source=DONE, shape=(1,), dtype="bool")
    success = Feature(key="next.success", source=SUCCESS, shape=(1,), dtype="bool")
    for judged in (True, False):
        one = Episode(steps=steps, states={}, success=judged)
        assert done.values(one).ravel().tolist() == [False, False, True]
        assert success.values(one).ravel().tolist() == [False, False, judged]
    with pytest.raises(InputError, match="expected an episode that was judged, got number 7"):
        success.values(episode(**steps))


def test_wider_numbers_may_be_rounded_but_not_cut() -> None:
    rounded = vector("a", 1).values(episode(a=np.array([0.1])))
    assert rounded.dtype == np.float32
    assert rounded[0, 0] == np.float32(0.1)
    kept = vector("a", 1, "int8").values(episode(a=np.array([100])))
    assert (kept.dtype, kept[0, 0]) == (np.int8, 100)
    with pytest.raises(InputError, match="expected values that int8 can hold, got int64"):
        vector("a", 1, "int8").values(episode(a=np.array([200])))
    with pytest.raises(InputError, match="expected values that int64 can hold, got float32"):
        vector("a", 1, "int64").values(episode(a=np.array([2.0], dtype=np.float32)))


def test_values_of_another_shape_are_refused() -> None:
    message = r"expected values of shape \(2,\), got \(3,\) from 'a'"
    with pytest.raises(InputError, match=message):
        vector("a").values(episode(a=np.zeros((4, 3), dtype=np.float32)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(
        InputError, match="expected finite values, got NaN or infinity in episode 7"
    ):
        vector("a", 1).values(episode(a=np.array([0.0, bad], dtype=np.float32)))


@pytest.mark.parametrize("key", ["", "a/b", "frame_index"])
def test_key_that_the_format_cannot_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a name without '/'"):
        Feature(key=key, source="a", shape=(1,), dtype="float32")


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1)])
def test_image_without_three_colours_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"expected an image of shape \(H, W, 3\)"):
        Feature(key="x", source="a", shape=shape, dtype="image")


@pytest.mark.parametrize("shape", [(), (0,), (1.5,), (1, 1, 1, 1, 1, 1)])
def test_number_of_axes_is_limited(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="expected 1 to 5 axes of at least 1"):
        Feature(key="x", source="a", shape=shape, dtype="float32")


def test_names_belong_to_the_components_of_a_vector() -> None:
    assert Feature(
        key="x", source="a", shape=(2,), dtype="float32", names=("x", "y")
    ).as_json() == {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
    with pytest.raises(ConfigurationError, match="expected names for the components of a vector"):
        Feature(key="x", source="a", shape=(3,), dtype="float32", names=("x", "y"))
