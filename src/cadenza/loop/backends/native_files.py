"""What the jobs of the native back end leave, read and checked; which episodes to train on.

Every figure of a result is checked against what it stands for: the seal of the result file, the
digests of dataset and weights, and the request that the loop made. Nothing of PyTorch is loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import confined_path, sha256_file, tree_digest
from cadenza.core.strict_json import parse_json_object, read_sealed_json
from cadenza.loop.backends.base import dataset_info
from cadenza.loop.config_backends import closest
from cadenza.loop.constitution.typed_jobs import NativeJob
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef, EpisodeOutcome, SeedRange
from cadenza.loop.scripts.select_episodes import select_balanced

#: Result file inside the folder of a step.
RESULT: Final = "result.json"
_KIND: Final = "cadenza-job-result"
_VERSION: Final = 1
_PAGE: Final = Path("meta/cadenza.json")
_SIDECAR: Final = ".json"
#: Features that a policy of this back end reads and writes.
_VECTORS: Final = ("observation.state", "action")


@dataclass(frozen=True, slots=True)
class SeedPage:
    """What a seed dataset says about its episodes: who was met in each, and how many they are."""

    partners: tuple[str, ...]
    total: int


def read_result(job: NativeJob, **more: Any) -> dict[str, Any]:
    """Return a job's result, or raise `IntegrityError` for none, or another request's.

    The result must have been asked for the numbers and names of ``job``, and for ``more``; how many
    episodes are played at once makes no difference to an evaluation.
    """
    path, kind = job.result_json, job.WORDS[-1]
    facts = read_sealed_json(path, kind=_KIND, schema_version=_VERSION)
    request: dict[str, Any] = facts.get("request", {})
    named = {key.replace("-", "_"): value for key, value in job.values().items()}
    expected = {name: v for name, v in named.items() if isinstance(v, int | float | str)}
    if kind == "evaluate":
        expected.pop("batch_size", None)
    expected |= more
    other = [name for name, value in expected.items() if request.get(name) != value]
    if facts.get("job") != kind or other:
        wanted, got = ({name: source.get(name) for name in other} for source in (expected, request))
        raise IntegrityError(
            f"{path}: expected the result of {kind!r} with {wanted}, got that of "
            f"{facts.get('job')!r} with {got}; remove the folder of the step and run it again."
        )
    return facts


def read_dataset(folder: Path, facts: Mapping[str, Any], notes: str) -> DatasetRef:
    """Return the dataset that a job wrote, or raise `IntegrityError` for another digest."""
    root = confined_path(folder, str(facts["folder"]))
    digest, found = str(facts["sha256"]), tree_digest(root)
    if found != digest:
        raise IntegrityError(
            f"{root}: expected the files of the digest {digest[:16]}..., got {found[:16]}...; the "
            "dataset was changed, so restore it."
        )
    return DatasetRef(
        repo_id=str(facts["repo_id"]),
        root=str(root),
        num_episodes=int(facts["episodes"]),
        notes=notes,
        sha256=str(facts["sha256"]),
    )


def require_weights(path: Path, sha256: str) -> None:
    """Raise `IntegrityError` unless the file ``path`` is there and has the digest ``sha256``."""
    if not path.is_file():
        raise IntegrityError(f"{path}: expected the weights of a policy, got no file.")
    found = sha256_file(path)
    if found != sha256:
        raise IntegrityError(
            f"{path}: expected weights of the digest {sha256[:16]}..., got {found[:16]}...; the "
            "file was changed, so restore it."
        )


def local_root(dataset: DatasetRef) -> Path:
    """Return the folder of a dataset, or raise `ConfigurationError` if it is not local."""
    if dataset.root is None:
        raise ConfigurationError(
            f"dataset {dataset.repo_id!r}: expected a local folder, got none; set seed_root."
        )
    return Path(dataset.root)


def dataset_features(dataset: DatasetRef) -> dict[str, list[int]]:
    """Return the shapes of state and action in a local dataset."""
    features: dict[str, Any] = dataset_info(local_root(dataset)).get("features", {})
    shapes = {key: features.get(key, {}).get("shape") for key in _VECTORS}
    for key, shape in shapes.items():
        if not isinstance(shape, list) or len(cast("list[Any]", shape)) != 1:
            raise ConfigurationError(
                f"{dataset.root}: expected the feature {key!r} as a vector of numbers, got "
                f"{features.get(key)}; this back end knows states, no images."
            )
    return cast("dict[str, list[int]]", shapes)


def dataset_task(dataset: DatasetRef) -> str | None:
    """Return the task that a dataset was played on; None if it does not say."""
    return read_page(Path(str(dataset.root))).get("task")


def read_page(root: Path) -> dict[str, Any]:
    """Return our page about a dataset; empty without one, an `IntegrityError` if it was changed."""
    path = root / _PAGE
    return read_sealed_json(path, kind="cadenza-dataset") if path.exists() else {}


def seed_page(root: Path) -> SeedPage:
    """Return what the dataset ``root`` says about its episodes."""
    total = dataset_info(root).get("total_episodes")
    if not isinstance(total, int) or total < 1:
        raise IntegrityError(f"{root}: expected a dataset with episodes, got {total!r} of them.")
    episodes: list[dict[str, Any]] = read_page(root).get("episodes", [])
    if episodes and len(episodes) != total:
        raise IntegrityError(
            f"{root / _PAGE}: expected a line for each of {total} episodes, got {len(episodes)}; "
            "restore the dataset, or remove this page of it."
        )
    return SeedPage(tuple(str(one["partner"]) for one in episodes), total)


def recorded_seeds(root: Path) -> tuple[int, ...] | None:
    """Return the seed of each episode of a dataset; None if it names none.

    A page that was changed, or names something else as a seed, is an `IntegrityError`.
    """
    episodes: list[dict[str, Any]] = read_page(root).get("episodes", [])
    seeds = [one.get("seed") for one in episodes]
    for seed in seeds:
        if type(seed) is not int or seed < 0:
            raise IntegrityError(
                f"{root / _PAGE}: expected the seed of every episode, a whole number, got {seed!r};"
                " restore the dataset, or remove this page of it."
            )
    return tuple(cast("list[int]", seeds)) or None


def checkpoint_facts(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """Return what the sidecar of a checkpoint says about it: ``features``, ``task``, ``rung``."""
    path = Path(checkpoint.path)
    sidecar = path.with_name(path.name + _SIDECAR)
    if not sidecar.is_file():
        raise IntegrityError(f"{sidecar}: expected the sidecar of a checkpoint, got no file.")
    facts = parse_json_object(sidecar.read_bytes(), source=str(sidecar))
    require_weights(path, str(facts.get("sha256")))
    extra = facts.get("extra")
    if not isinstance(extra, dict) or not isinstance(
        cast("dict[str, Any]", extra).get("features"), dict
    ):
        raise ConfigurationError(
            f"{sidecar}: expected 'features' in 'extra', got none; name a policy that "
            "`cadenza job train` trained."
        )
    return cast("dict[str, Any]", extra)


#: Episodes of a partner in focus for each episode of another one.
FOCUS_WEIGHT: Final = 3
#: Names of several partners at once, which the jobs know: all, and those that leave the ego a way.
_EVERYBODY: Final = "default"
_LEAVING_WAY: Final = "leaving_way"


def require_partners(key: str, text: str | None) -> None:
    """Raise unless ``text`` says whom to play with, or whose data to take.

    That is partners with commas between them, ``default`` or ``leaving_way``; None for everybody.
    """
    if text in (None, _EVERYBODY, _LEAVING_WAY):
        return
    from cadenza.partners.registry import list_registered

    names, known = text.split(","), list_registered()
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{key}: expected {_EVERYBODY} or {_LEAVING_WAY} alone, or partners with commas "
                f"between them (`cadenza partners list` names them), got {name!r}; "
                f"{closest(name, (_EVERYBODY, _LEAVING_WAY, *known))}"
            )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{key}: expected each partner once, got {text!r}.")


@dataclass(frozen=True, slots=True)
class PartnerFilter:
    """Whose data is taken, as ``data.task_filter`` says; None for everybody."""

    text: str | None

    def among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` whose data is taken, in order; unknown ones may be refused."""
        if self.text in (None, _EVERYBODY):
            return tuple(names)
        if self.text == _LEAVING_WAY:
            from cadenza.partners.registry import partner_card

            return tuple(name for name in names if partner_card(name).leaves_way)
        return tuple(name for name in names if name in self._named)

    def within(self, page: SeedPage) -> tuple[str, ...]:
        """Return the partners whose episodes of a dataset are taken; empty for everybody."""
        if self.text in (None, _EVERYBODY):
            return ()
        met = tuple(dict.fromkeys(page.partners))
        taken = self.among(met) if self.text == _LEAVING_WAY else self._named
        missing = [name for name in taken if name not in met]
        if missing or not taken:
            raise ConfigurationError(
                "data.task_filter: expected partners of the seed dataset "
                f"({', '.join(met) or 'it names none'}), got {(*missing, self.text)[0]!r}."
            )
        return taken

    @property
    def _named(self) -> tuple[str, ...]:
        return tuple((self.text or "").split(","))


def selected_episodes(
    page: SeedPage, count: int | None, focus: Sequence[str], partners: PartnerFilter
) -> tuple[int, ...] | None:
    """Return which episodes of a dataset a cycle takes, ``count`` of them; None for all.

    Without focus these are the first ones. With focus, rounds over the partners, three episodes of
    each in focus and one of each other one, in the order of the dataset, until there are enough.
    """
    met = np.asarray(page.partners or ("",) * page.total, dtype=np.str_)
    names, of_episode = np.unique(met, return_inverse=True)
    only = partners.within(page)
    taken = np.flatnonzero(np.isin(names, only)[of_episode]) if only else np.arange(page.total)
    wanted = len(taken) if count is None else min(count, len(taken))
    if wanted == page.total:
        return None
    in_focus = np.isin(names, np.asarray(focus, dtype=np.str_))
    if not in_focus[of_episode[taken]].any():
        return tuple(taken[:wanted].tolist())
    weights = np.where(in_focus, FOCUS_WEIGHT, 1).astype(np.int64)
    chosen, _ = select_balanced(taken, of_episode[taken], weights=weights, limit=wanted)
    return tuple(chosen.tolist())


def outcomes_of(
    facts: Mapping[str, Any], seeds: SeedRange, *, source: Path
) -> tuple[EpisodeOutcome, ...]:
    """Return the episodes of an evaluation's result, its figures checked against them."""
    outcomes = tuple(
        EpisodeOutcome(
            task=one["partner"], seed=one["seed"], success=one["success"], score=one["return"]
        )
        for one in facts["episodes"]
    )
    played = [outcome.seed for outcome in outcomes]
    if played != list(range(seeds.start, seeds.start + seeds.count)):
        raise IntegrityError(
            f"{source}: expected the seeds {seeds.start} to {seeds.start + seeds.count - 1} in "
            f"order, got {played[:3]}...; remove the folder of the step and run it again."
        )
    groups = {"overall": (facts["overall"], outcomes)}
    for name, figures in facts["per_task"].items():
        groups[name] = (figures, tuple(o for o in outcomes if o.task == name))
    for name, (figures, group) in groups.items():
        rate = sum(o.success for o in group) / max(len(group), 1)
        if figures["n_episodes"] != len(group) or figures["success_rate"] != rate:
            raise IntegrityError(
                f"{source}: expected figures of {name!r} that follow from the episodes ({rate} of "
                f"{len(group)}), got {figures['success_rate']} of {figures['n_episodes']}."
            )
    return outcomes
