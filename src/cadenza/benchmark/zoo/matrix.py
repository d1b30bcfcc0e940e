"""Everybody with everybody: the cross-play matrix of zoos, with an interval for every cell.

Cell (i, j): mean score of ego i beside partner j, success where the task has it, else the return;
             every cell plays the same starts, from the root seed stored with it.
Order:       rows and columns by average-linkage clustering of what they score.
Axes:        I = egos, J = partners, M = episodes.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.policies import EgoSeat, NetworkPolicy, read_policy
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.pairs import PairEnv, PairEpisodes, PairPolicy, open_pairs, play
from cadenza.core.arrays import FloatArray
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_json, atomic_writer
from cadenza.core.progress import ProgressReport
from cadenza.core.seeding import derive_substream
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.partners.frozen import OnnxGraph
from cadenza.partners.interface import PartnerBase
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.zoo_manifest import Skill, ZooManifest, ZooMember, read_manifest
from cadenza.partners.zoo_member import ZOO_MEMBER, load_member

#: Default episodes of a cell.
DEFAULT_EPISODES: Final = 50
MATRIX_JSON: Final = "matrix.json"
MATRIX_PNG: Final = "matrix.png"
#: Inches of the heat map per cell and for its labels.
_CELL_INCHES: Final = 0.42
_LABEL_INCHES: Final = 2.6


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """A member and where its zoo is."""

    folder: Path
    member: ZooMember

    def spec(self, uid: str) -> PartnerSpec:
        """Return what to load, driving robot ``uid``."""
        member = self.member
        if member.class_name != ZOO_MEMBER:
            return PartnerSpec(member.class_name, 0, extra={**member.options, "uid": uid})
        return PartnerSpec(
            ZOO_MEMBER,
            member.seed,
            member.step,
            f"local://{member.file}",
            extra={"uid": uid, "root": str(self.folder)},
            weights_sha256=member.sha256,
        )


def open_zoos(folders: Sequence[Path]) -> tuple[ZooManifest, list[ZooEntry]]:
    """Return the first manifest and the members of all."""
    manifests = [read_manifest(folder) for folder in folders]
    first = manifests[0]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.task_sha256 != first.task_sha256:
            raise ConfigurationError(
                f"{folder}: expected a zoo of the task and settings of {folders[0]} "
                f"({first.task}, {first.episode_length} steps), got {manifest.task}, "
                f"{manifest.episode_length} steps."
            )
    entries = [
        ZooEntry(folder=folder, member=member)
        for folder, manifest in zip(folders, manifests, strict=True)
        for member in manifest.members
    ]
    names = [entry.member.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"zoos: expected distinct members, got {twice[0]!r} twice; train zoos of one method "
            "with different seeds."
        )
    return first, entries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossPlay:
    """The matrix.

    Attributes:
        egos: Names of the rows, (I,): members, and files by their stem or, if shared, path.
        partners: Members of the columns, (J,).
        skills: Cells, I rows of J.
        seed: Root of the episodes' seeds.
        row_order: Rows by clustering.
        column_order: Columns by clustering.
    """

    egos: tuple[str, ...]
    partners: tuple[ZooMember, ...]
    skills: tuple[tuple[Skill, ...], ...]
    seed: int
    row_order: tuple[int, ...]
    column_order: tuple[int, ...]

    @property
    def values(self) -> FloatArray:
        """Mean scores, (I, J)."""
        return np.array([[skill.value for skill in row] for row in self.skills])

    def as_json(self) -> dict[str, Any]:
        """Return the matrix as JSON values."""
        return {
            "egos": list(self.egos),
            "partners": [
                {"name": m.name, "family": m.family, "tier": m.tier, "split": m.split}
                for m in self.partners
            ],
            "cells": [[skill.model_dump(mode="json") for skill in row] for row in self.skills],
            "episode_root_seed": self.seed,
            "row_order": list(self.row_order),
            "column_order": list(self.column_order),
        }


def cross_play(
    folders: Sequence[Path],
    *,
    egos: Sequence[Path] = (),
    episodes: int = DEFAULT_EPISODES,
    seed: int = 0,
    progress: ProgressReport | None = None,
) -> CrossPlay:
    """Play every ego with every member.

    Args:
        folders: Zoos of one task; egos are their learned members as they were at the end.
        egos: Further egos, files of any kind that `cadenza.benchmark.policies` reads.
        episodes: M of every cell.
        seed: Root of the episodes' seeds.
        progress: Called with (cells done, cells in all, the ego).

    Raises:
        IntegrityError: A manifest or member is not what was sealed.
        CheckpointError: Weights are missing, damaged or of another task.
        ConfigurationError: The zoos do not fit together, or there is no ego.
    """
    manifest, entries = open_zoos(folders)
    config = settings_of(manifest, seed)
    root = derive_substream("zoo.matrix", root_seed=seed).integer_seed()
    policies: list[tuple[str, PortableNetwork | OnnxGraph]] = [
        (entry.member.name, load_member(entry.folder, entry.member.name).ego.network())
        for entry in entries
        if entry.member.class_name == ZOO_MEMBER and entry.member.tier == "final"
    ]
    taken = [name for name, _ in policies] + [path.stem for path in egos]
    for path in egos:  # a file's name says who it is only where no other has it
        name = path.stem if taken.count(path.stem) == 1 else str(path)
        policies.append((name, read_policy(path)[0]))
    if not policies:
        raise ConfigurationError(
            "zoo matrix: expected a learned member or an ego, got scripted members only; pass "
            "--ego CHECKPOINT or another zoo."
        )
    rows: list[tuple[Skill, ...]] = []
    with single_torch_thread(), closing(open_pairs(config, episodes)) as env:
        for number, (name, policy) in enumerate(policies):
            cells: list[Skill] = []
            for column, entry in enumerate(entries):
                played = play_pair(env, config, ego_policy(env, policy, name), entry, seed=root)
                cells.append(played.skill())
                if progress is not None:
                    done = number * len(entries) + column + 1
                    progress(done, len(policies) * len(entries), name)
            rows.append(tuple(cells))
    values = np.array([[skill.value for skill in row] for row in rows])
    return CrossPlay(
        egos=tuple(name for name, _ in policies),
        partners=tuple(entry.member for entry in entries),
        skills=tuple(rows),
        seed=root,
        row_order=clustered(values),
        column_order=clustered(values.T),
    )


def settings_of(manifest: ZooManifest, seed: int) -> ZooConfig:
    """Return how the members of a zoo are played."""
    return ZooConfig(
        method="scripted",
        task=manifest.task,
        episode_length=manifest.episode_length,
        options=manifest.options,
        seed=seed,
    )


def play_pair(
    env: PairEnv, config: ZooConfig, ego: PairPolicy, entry: ZooEntry, *, seed: int
) -> PairEpisodes:
    """Play one episode of ``ego`` and a member in every environment."""
    partner = cast("PartnerBase", load_partner(entry.spec(env.uids[1])))
    if env.choices is None:
        partner.bind(env.env.single_action_space[env.uids[1]])
    partner.reset(seed=seed)
    stream = derive_substream("zoo.matrix.partner", root_seed=seed)
    for row, child in enumerate(stream.spawn(env.num_envs)):
        partner.reset_row(row, seed=child.integer_seed())
    return play(
        env,
        ego,
        lambda states: partner.act(env.observation(states)),
        horizon=config.horizon,
        events=events_of(config.task),
        seed=seed,
    )


def ego_policy(env: PairEnv, policy: PortableNetwork | OnnxGraph, name: str) -> PairPolicy:
    """Return ``policy`` for the ego's place."""
    width = env.observation_dims[0]
    seat = EgoSeat(
        uid=env.uids[0],
        observation_dim=width,
        low=env.low[0],
        high=env.high[0],
        chooses=env.choices is not None,
    )
    player = NetworkPolicy(policy, seat, source=f"ego {name!r}")
    return lambda states: player.act_rows(states[0][:, :width])


def clustered(values: FloatArray) -> tuple[int, ...]:
    """Return the order of the rows of ``values`` by average-linkage clustering."""
    if len(values) < 3:
        return tuple(range(len(values)))
    hierarchy = load_extra("scipy.cluster.hierarchy")
    tree = hierarchy.linkage(values, method="average", optimal_ordering=True)
    return tuple(int(k) for k in hierarchy.leaves_list(tree))


def write_matrix(
    folder: Path, result: CrossPlay, diversity: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write the matrix as JSON, the families' ``diversity`` in it, and as a heat map."""
    paths = folder / MATRIX_JSON, folder / MATRIX_PNG
    atomic_write_json(paths[0], {**result.as_json(), "diversity": dict(diversity)})
    figure = _heat_map(result)
    with atomic_writer(paths[1]) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
    return paths


def _heat_map(result: CrossPlay) -> Any:
    """Return a figure with egos as rows and partners as columns, in clustered order."""
    figures = load_extra("matplotlib.figure")
    rows, columns = list(result.row_order), list(result.column_order)
    values: NDArray[Any] = result.values[np.ix_(rows, columns)]
    success = result.skills[0][0].metric == "success"
    width = max(6.0, _CELL_INCHES * len(columns) + _LABEL_INCHES + 1.2)
    height = max(3.6, _CELL_INCHES * len(rows) + _LABEL_INCHES)
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    low, high = (0.0, 1.0) if success else (float(values.min()), float(values.max()))
    image = axes.imshow(values, cmap="viridis", vmin=low, vmax=high, aspect="auto")
    middle = 0.5 * (low + high)
    for y, x in np.ndindex(*values.shape):
        text = f"{100 * values[y, x]:.0f}" if success else f"{values[y, x]:.0f}"
        color = "black" if values[y, x] > middle else "white"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=color)
    labels = [f"{result.partners[k].name}" for k in columns]
    axes.set_xticks(range(len(columns)), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(len(rows)), [result.egos[k] for k in rows], fontsize=7)
    axes.set_xlabel("partner")
    axes.set_ylabel("ego")
    episodes = result.skills[0][0].episodes
    kind = "success, %" if success else "mean return"
    axes.set_title(f"Cross-play: {kind} of {episodes} episodes", fontsize=10, loc="left")
    figure.colorbar(image, ax=axes, label="success" if success else "mean return")
    return figure
