"""Datasets that are damaged, foreign or not what they say are refused."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cadenza.benchmark.jobs.dataset_files import (
    feature_shapes,
    read_frames,
    read_page,
    write_page,
)
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.lerobot_dataset import read_info

DATA = "data/chunk-000/file-000.parquet"


@pytest.fixture
def dataset(expert_data, tmp_path):
    """A copy that may be damaged."""
    root = tmp_path / "dataset"
    shutil.copytree(expert_data.root, root)
    return root


def change_info(root, **changes):
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_frames_are_those_of_the_table(dataset):
    frames = read_frames(dataset)
    table = pq.read_table(dataset / DATA)
    assert frames.states.tolist() == table["observation.state"].to_pylist()
    assert frames.actions.tolist() == table["action"].to_pylist()
    assert frames.episodes.tolist() == table["episode_index"].to_pylist()
    assert frames.states.dtype == np.float32


def test_missing_dataset_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"expected a LeRobotDataset v3\.0, got no"):
        read_info(tmp_path)


def test_images_are_no_states(dataset):
    image = {"dtype": "image", "shape": [8, 8, 3]}
    with pytest.raises(ConfigurationError, match=r"expected the feature 'observation.state' as a"):
        feature_shapes({"features": {"observation.state": image}}, source="x")


def described(**changes):
    return lambda root: change_info(root, **changes)


def cut_table(root):
    (root / DATA).write_bytes((root / DATA).read_bytes()[:-30])


def action_that_is_not_finite(root):
    table = pq.read_table(root / DATA)
    actions = np.array(table["action"].to_pylist(), dtype=np.float32)
    actions[3, 1] = np.nan
    array = pa.FixedSizeListArray.from_arrays(pa.array(actions.reshape(-1)), 2)
    place = table.schema.get_field_index("action")
    pq.write_table(table.set_column(place, "action", array), root / DATA)


def wider_action(root):
    features = json.loads((root / "meta/info.json").read_text())["features"]
    change_info(root, features=features | {"action": features["action"] | {"shape": [3]}})


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (described(codebase_version="v2.1"), ConfigurationError, "version v3.0, got 'v2.1'"),
        (described(features=None), IntegrityError, "expected 'features', got None"),
        (
            described(total_frames=7),
            IntegrityError,
            r"expected total_frames \d+ as in meta/episodes, got 7",
        ),
        (cut_table, IntegrityError, "expected a readable Parquet file"),
        (
            action_that_is_not_finite,
            IntegrityError,
            "0, column 'action': expected finite numbers",
        ),
        (
            wider_action,
            IntegrityError,
            "0, column 'action': expected 3 entries, got 2",
        ),
    ],
)
def test_dataset_that_is_not_what_it_says_is_refused(dataset, damage, error, told):
    damage(dataset)
    with pytest.raises(error, match=told):
        read_frames(dataset)


def test_dataset_of_another_writer_has_no_page(dataset):
    (dataset / "meta/cadenza.json").unlink()
    assert read_page(dataset) is None
    write_page(dataset, {"task": "crossing"})
    assert read_page(dataset) == {"task": "crossing"}
