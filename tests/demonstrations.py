"""Small folders of demonstrations of every kind, and the episodes that they hold."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from cadenza.core.episodes import Episode

LENGTHS = (4, 1, 6)
STATE_DIM, ACTION_DIM, RATE_HZ = 3, 2, 20


def demonstrations(lengths: Sequence[int] = LENGTHS, *, last: bool = True) -> list[Episode]:
    """Return episodes of random numbers; the last observation is there only with ``last``."""
    rng = np.random.default_rng(5)
    return [
        Episode(
            observations={
                "state": rng.standard_normal((length + last, STATE_DIM)).astype(np.float32)
            },
            actions=rng.standard_normal((length, ACTION_DIM)).astype(np.float32),
            rewards=rng.standard_normal(length).astype(np.float32),
            terminated=number % 2 == 0,
            success=number % 2 == 0,
        )
        for number, length in enumerate(lengths)
    ]


def vectors(values: np.ndarray, *, fixed: bool) -> pa.Array:
    """Return (L, D) as LeRobot's writers do: v3.0 with lists of one size, v2.1 of any."""
    flat = pa.array(values.reshape(-1))
    if fixed:
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.ListArray.from_arrays(
        np.arange(0, len(flat) + 1, values.shape[1], dtype=np.int32), flat
    )


def frames(episode: Episode, number: int, first: int, *, fixed: bool) -> dict[str, Any]:
    """Return the columns of an episode, as a table of frames has them."""
    length = len(episode)
    steps = np.arange(length)
    ends = steps == length - 1
    return {
        "observation.state": vectors(episode.observations["state"][:length], fixed=fixed),
        "action": vectors(episode.actions, fixed=fixed),
        "next.reward": pa.array(episode.rewards),
        "next.done": pa.array(ends),
        "next.terminated": pa.array(ends & episode.terminated),
        "next.success": pa.array(ends & bool(episode.success)),
        "timestamp": pa.array((steps / RATE_HZ).astype(np.float32)),
        "frame_index": pa.array(steps),
        "episode_index": pa.array(np.full(length, number)),
        "index": pa.array(first + steps),
        "task_index": pa.array(np.zeros(length, np.int64)),
    }


def description(version: str, lengths: Sequence[int], **features: Any) -> dict[str, Any]:
    """Return ``meta/info.json``; ``features`` come on top."""
    kinds = {
        "observation.state": ("float32", [STATE_DIM]),
        "action": ("float32", [ACTION_DIM]),
        "next.reward": ("float32", [1]),
        "next.done": ("bool", [1]),
        "next.terminated": ("bool", [1]),
        "next.success": ("bool", [1]),
        "timestamp": ("float32", [1]),
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), ("int64", [1])),
    }
    path = {
        "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    }
    return {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 1,
        "chunks_size": 2 if version == "v2.1" else 1000,
        "fps": RATE_HZ,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": path[version],
        "video_path": None,
        "features": {
            **{k: {"dtype": d, "shape": s, "names": None} for k, (d, s) in kinds.items()},
            **features,
        },
    }


def save(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_lerobot(root: Path, version: str, episodes: Sequence[Episode], **changes: Any) -> Path:
    """Write a dataset in the layout of ``version``; two episodes share a file of v3.0.

    ``changes`` are columns of episode 1, or None to leave one out.
    """
    lengths, first, parts, rows = [len(e) for e in episodes], 0, {}, []
    for number, episode in enumerate(episodes):
        columns = frames(episode, number, first, fixed=version == "v3.0")
        if number == 1:
            columns |= {k.replace("__", "."): v for k, v in changes.items()}
        place = number // 2
        rows.append(
            {
                "episode_index": number,
                "tasks": ["reach"],
                "length": len(episode),
                "data/chunk_index": 0,
                "data/file_index": place,
                "dataset_from_index": first,
                "dataset_to_index": first + len(episode),
            }
        )
        first += len(episode)
        if version == "v3.0":
            parts.setdefault(place, []).append(pa.table(columns))
        else:
            save(root / f"data/chunk-{place:03d}/episode_{number:06d}.parquet", columns)
    meta = root / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "info.json").write_text(json.dumps(description(version, lengths)))
    if version == "v3.0":
        for place, tables in parts.items():
            path = root / f"data/chunk-000/file-{place:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.concat_tables(tables), path)
        save(meta / "episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows).to_pydict())
        save(meta / "tasks.parquet", {"task_index": [0], "__index_level_0__": ["reach"]})
    else:
        names = ("episode_index", "tasks", "length")
        lines = [json.dumps({name: row[name] for name in names}) for row in rows]
        (meta / "episodes.jsonl").write_text("\n".join(lines) + "\n")
        (meta / "tasks.jsonl").write_text('{"task_index": 0, "task": "reach"}\n')
    return root


def png(pixels: np.ndarray) -> dict[str, Any]:
    """Return a picture as it lies in a table."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": "frame.png"}


def npz_arrays(episode: Episode) -> dict[str, Any]:
    return {
        "observations": episode.observations["state"],
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminated": np.array(episode.terminated),
        "success": np.array(episode.success),
    }


def write_npz(root: Path, episodes: Sequence[Episode]) -> Path:
    root.mkdir()
    for number, episode in enumerate(episodes):
        np.savez(root / f"episode_{number}.npz", **npz_arrays(episode))
    return root


def csv_rows(episode: Episode, number: int) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for step in range(len(episode)):
        is_last = step == len(episode) - 1
        state, action = episode.observations["state"][step], episode.actions[step]
        flags = [is_last and episode.terminated, bool(is_last and episode.success)]
        reward = episode.rewards[step]
        rows.append([number, step, *map(float, (*state, *action, reward)), *flags])
    return rows


CSV_HEADER = (
    "episode_index,frame_index,observation.0,observation.1,observation.2,action.0,action.1,"
    "reward,terminated,success"
)


def write_csv(path: Path, episodes: Sequence[Episode]) -> Path:
    rows = [row for number, episode in enumerate(episodes) for row in csv_rows(episode, number)]
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([CSV_HEADER, *lines]) + "\n")
    return path
