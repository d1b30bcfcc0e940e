"""Numbers that a field of integers or truth values keeps, and those that it would change."""

from typing import Any

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore
from tests.stream_episodes import new_store


def written(dtype: str, value: Any) -> Any:
    """Write ``value`` as an action of ``dtype`` and return what the store holds then."""
    fields = (Field(name="actions", shape=np.shape(value), dtype=dtype), *BOOKKEEPING)
    store = SlotStore.create(StoreLayout(slots=1, steps=1, producers=1, fields=fields))
    writer = EpisodeWriter(store, store.take_slot(0))
    step = {"actions": value, "rewards": 1, "terminated": False, "truncated": False}
    writer.start({})
    writer.add(step, {})
    return store.entries("actions", 0)[0].tolist()


@pytest.mark.parametrize(
    ("dtype", "value", "told"),
    [
        ("int64", 1.9, "int64 holds, got 1.9 as float64"),
        ("uint8", np.array([3.0, 300.7]), "uint8 holds, got 300.7 as float64"),
        ("uint8", np.array([255, 256]), "uint8 holds, got 256 as int64"),
        ("uint8", -1, "uint8 holds, got -1 as int64"),
        ("int8", np.uint8(200), "int8 holds, got 200 as uint8"),
        ("int64", np.uint64(2**64 - 1), "int64 holds, got 18446744073709551615 as uint64"),
        ("uint64", np.int64(-1), "uint64 holds, got -1 as int64"),
        ("int32", float("nan"), "int32 holds, got nan as float64"),
        ("int32", float("inf"), "int32 holds, got inf as float64"),
        ("bool", 2, "bool holds, got 2 as int64"),
        ("bool", 0.5, "bool holds, got 0.5 as float64"),
        ("int64", torch.tensor([0.5]), "int64 holds, got 0.5 as float32"),
        ("int64", "1", "int64 holds, got '1' as <U1"),
        ("float32", 1j, "float32 holds, got 1j as complex128"),
        ("float32", np.array([None]), "float32 holds, got None as object"),
    ],
)
def test_number_that_would_change_is_refused(dtype: str, value: Any, told: str) -> None:
    expected = f"expected numbers of 'actions' that {told}; correct what gives them, or the type of"
    with pytest.raises(InputError, match=expected):
        written(dtype, value)


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [
        ("int64", 2.0, 2),
        ("int64", True, 1),
        ("uint8", np.array([0, 255]), [0, 255]),
        ("uint8", np.array([7.0], np.float32), [7]),
        ("bool", np.array([0.0, 1.0]), [False, True]),
        ("int32", np.int8(-5), -5),
        ("uint64", np.uint64(2**64 - 1), 2**64 - 1),
        ("float32", 0.1, float(np.float32(0.1))),  # floats round
        ("float16", 2049, 2048.0),  # as do integers in them
        ("float32", 1e300, float("inf")),  # which the runner drops
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_number_that_the_type_holds_is_written(dtype: str, value: Any, kept: Any) -> None:
    assert written(dtype, value) == kept


STEP = {"actions": [0], "rewards": 0, "terminated": False, "truncated": False}
NEXT = {"obs": [1, 1]}


def publish_33_segments(writer: EpisodeWriter) -> None:
    for k in range(33):
        writer.add(STEP | {"segment_id": k}, NEXT)
    writer.publish()


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda writer: writer.start({"ob": [1, 1]}), r"state fields \['obs'\], got \['ob'\]"),
        (lambda writer: writer.start({"obs": [1] * 3}), r"'obs' of shape \(2,\), got \(3,\)"),
        (lambda writer: writer.publish(), "expected at least one step, got 0; use drop"),
        (lambda writer: [writer.add(STEP, NEXT) for _ in range(99)], "at most 40 steps per ep"),
        (publish_33_segments, "at most 32 segments .*, got 33"),
        (lambda writer: writer.add(STEP | {"segment_id": 0.5}, NEXT), "that int64 holds, got 0.5"),
    ],
)
def test_what_is_no_episode_of_the_store_is_refused(write: Any, told: str) -> None:
    store = new_store(steps=40)
    with pytest.raises(InputError, match=told):
        write(EpisodeWriter(store, store.take_slot(0)))
