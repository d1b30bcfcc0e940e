"""Finished cells on disk: one atomic, checksummed file each.

Layout:   ``cells/<key>.jsonl``: a header line that names the cell, one line per episode, and a
          last line with the number of episodes and the SHA-256 of all bytes before it.
Resume:   a set difference: a cell whose file is whole is done; any other is run again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from cadenza.benchmark.cells import Cell, EvaluationPlan, initial_state_seed
from cadenza.core.errors import IntegrityError
from cadenza.core.files import atomic_write_bytes, canonical_json, sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.evaluation.episodes import episode_line
from cadenza.evaluation.results import EpisodeResult

#: Folder of finished cells inside an evaluation's output folder.
CELLS_FOLDER: Final = "cells"
#: Kind and version of a cell file.
_KIND: Final = "cadenza-cell/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """What a folder of cells holds of a plan.

    Attributes:
        done: Keys whose files are whole, in plan order.
        missing: Keys still to run, in plan order; includes the damaged ones.
        damaged: Why a file that exists cannot be used, by key.
    """

    done: tuple[str, ...]
    missing: tuple[str, ...]
    damaged: dict[str, str]


def cell_path(folder: Path, key: str) -> Path:
    """Return where the cell ``key`` is stored below the output folder ``folder``."""
    return folder / CELLS_FOLDER / f"{key}.jsonl"


def write_cell(folder: Path, key: str, cell: Cell, episodes: Sequence[EpisodeResult]) -> None:
    """Store a finished cell in one durable step.

    Raises:
        StorageError: The file system refused; an earlier file is unchanged.
    """
    lines = [episode_line(episode) for episode in episodes]
    body = b"".join([_header_line(key, cell) + b"\n", *lines])
    data = body + _closing_line(body, len(episodes)) + b"\n"
    atomic_write_bytes(cell_path(folder, key), data)


def read_cell(folder: Path, key: str, plan: EvaluationPlan) -> list[EpisodeResult]:
    """Return the episodes of the stored cell ``key``.

    Raises:
        FileNotFoundError: The cell was never finished.
        IntegrityError: The file is torn, was changed, or belongs to another cell.
    """
    path = cell_path(folder, key)
    data = path.read_bytes()
    body, closing_line = _split_last_line(data, path)
    header, *lines = body.split(b"\n")[:-1]
    if closing_line != _closing_line(body, len(lines)):
        raise IntegrityError(f"{path}: expected the recorded SHA-256, got other bytes.")
    cell = plan.cells[key]
    if header != _header_line(key, cell):
        raise IntegrityError(f"{path}: expected the file of {cell.label}, got another one.")
    episodes = [_parse_episode(line, f"{path.name}, line {n}") for n, line in enumerate(lines, 2)]
    check_cell_episodes(plan, cell, episodes)
    return episodes


def check_cell_episodes(
    plan: EvaluationPlan, cell: Cell, episodes: Sequence[EpisodeResult]
) -> None:
    """Raise unless ``episodes`` are exactly the planned ones of ``cell``, in order.

    Raises:
        IntegrityError: An episode is missing, foreign, or started from another state than planned.
    """
    indices = range(cell.first_episode, cell.first_episode + cell.n_episodes)
    expected = [
        (cell.seed, plan.episode_idx(cell, i), initial_state_seed(cell.seed, i)) for i in indices
    ]
    got = [(e.seed, e.episode_idx, e.initial_state_seed) for e in episodes]
    if got != expected:
        raise IntegrityError(
            f"{cell.label}: expected (seed, episode_idx, initial_state_seed) "
            f"{expected[0]} ... {expected[-1]} ({len(expected)} episodes), "
            f"got {len(got)} episodes that differ."
        )
    for episode in episodes:
        stamp = (episode.metadata.get("policy"), episode.condition, episode.partner)
        if stamp != (cell.policy, cell.condition, cell.partner):
            raise IntegrityError(f"{cell.label}: expected its own episodes, got one of {stamp}.")


def find_missing_cells(folder: Path, plan: EvaluationPlan) -> ResumeState:
    """Return which cells of ``plan`` are whole in ``folder`` and which must run."""
    done: list[str] = []
    missing: list[str] = []
    damaged: dict[str, str] = {}
    for key in plan.cells:
        try:
            read_cell(folder, key, plan)
        except FileNotFoundError:
            missing.append(key)
        except IntegrityError as error:
            missing.append(key)
            damaged[key] = str(error)
        else:
            done.append(key)
    return ResumeState(done=tuple(done), missing=tuple(missing), damaged=damaged)


def _header_line(key: str, cell: Cell) -> bytes:
    return canonical_json({"kind": _KIND, "key": key, "cell": cell.model_dump(mode="json")})


def _closing_line(body: bytes, n_episodes: int) -> bytes:
    return canonical_json({"episodes": n_episodes, "sha256": sha256_bytes(body)})


def _split_last_line(data: bytes, path: Path) -> tuple[bytes, bytes]:
    """Return (everything before the last line, the last line without its newline)."""
    end = data.rfind(b"\n", 0, -1)
    if end < 0 or not data.endswith(b"\n"):
        raise IntegrityError(f"{path}: expected complete lines, got a torn file.")
    return data[: end + 1], data[end + 1 : -1]


def _parse_episode(line: bytes, source: str) -> EpisodeResult:
    content = parse_json_object(line, source=source)
    try:
        return EpisodeResult.model_validate(content)
    except ValidationError as error:
        raise IntegrityError(f"{source}: expected an episode, got {error}") from error
