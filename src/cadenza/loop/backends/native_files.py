"""What the jobs of the native back end leave, read back and checked.

Every figure of a result is checked against what it stands for: the seal of the result file, the
digests of dataset and weights, and the request that the loop made. Nothing of PyTorch is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import confined_path, sha256_file
from cadenza.core.sealed_json import read_sealed_json
from cadenza.core.strict_json import parse_json_object
from cadenza.core.tree_digest import tree_digest
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef

#: Result file inside the folder of a step.
RESULT: Final = "result.json"
_KIND: Final = "cadenza-job-result"
_VERSION: Final = 1
_INFO: Final = Path("meta/info.json")
_PAGE: Final = Path("meta/cadenza.json")
_SIDECAR: Final = ".json"
#: Features that a policy of this back end reads and writes.
_VECTORS: Final = ("observation.state", "action")


@dataclass(frozen=True, slots=True)
class SeedPage:
    """What a seed dataset says about its episodes.

    Attributes:
        partners: Who was met, by number of the episode; empty if it does not say.
        total: Number of episodes.
    """

    partners: tuple[str, ...]
    total: int


def read_result(folder: Path, job: str, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a job.

    Args:
        folder: Folder of the step.
        job: Name of the job.
        expected: Parts of the request that must be as asked for.

    Raises:
        IntegrityError: It is missing, damaged, or the result of another request.
    """
    path = folder / RESULT
    facts = read_sealed_json(path, kind=_KIND, schema_version=_VERSION)
    request: dict[str, Any] = facts.get("request", {})
    other = [name for name, value in expected.items() if request.get(name) != value]
    if facts.get("job") != job or other:
        wanted, got = ({name: source.get(name) for name in other} for source in (expected, request))
        raise IntegrityError(
            f"{path}: expected the result of {job!r} with {wanted}, got that of "
            f"{facts.get('job')!r} with {got}; remove the folder of the step and run it again."
        )
    return facts


def read_dataset(folder: Path, facts: Mapping[str, Any], notes: str) -> DatasetRef:
    """Return the dataset that a job wrote, its digest checked.

    Args:
        folder: Folder of the step.
        facts: What the result says about the dataset.
        notes: Where it comes from.

    Raises:
        IntegrityError: The files are not those of the result.
    """
    root = confined_path(folder, str(facts["folder"]))
    require_tree(root, str(facts["sha256"]))
    return DatasetRef(
        repo_id=str(facts["repo_id"]),
        root=str(root),
        num_episodes=int(facts["episodes"]),
        notes=notes,
        sha256=str(facts["sha256"]),
    )


def require_tree(root: Path, sha256: str) -> None:
    """Raise unless the files below ``root`` have the digest ``sha256``.

    Raises:
        IntegrityError: They have not.
    """
    found = tree_digest(root)
    if found != sha256:
        raise IntegrityError(
            f"{root}: expected the files of the digest {sha256[:16]}..., got {found[:16]}...; the "
            "dataset was changed, so restore it."
        )


def require_weights(path: Path, sha256: str) -> None:
    """Raise unless the file ``path`` has the digest ``sha256``.

    Raises:
        IntegrityError: It has not, or there is none.
    """
    if not path.is_file():
        raise IntegrityError(f"{path}: expected the weights of a policy, got no file.")
    found = sha256_file(path)
    if found != sha256:
        raise IntegrityError(
            f"{path}: expected weights of the digest {sha256[:16]}..., got {found[:16]}...; the "
            "file was changed, so restore it."
        )


def dataset_features(dataset: DatasetRef) -> dict[str, list[int]]:
    """Return the shapes of state and action in a local dataset.

    Raises:
        ConfigurationError: It is not local, no dataset, or has no such vectors.
        IntegrityError: Its description is damaged.
    """
    if dataset.root is None:
        raise ConfigurationError(
            f"dataset {dataset.repo_id!r}: expected a local folder, got none; set seed_root."
        )
    path = Path(dataset.root) / _INFO
    features: dict[str, Any] = _json(path).get("features", {})
    shapes = {key: features.get(key, {}).get("shape") for key in _VECTORS}
    for key, shape in shapes.items():
        if not isinstance(shape, list) or len(cast("list[Any]", shape)) != 1:
            raise ConfigurationError(
                f"{path}: expected the feature {key!r} as a vector of numbers, got "
                f"{features.get(key)}; this back end knows states, no images."
            )
    return cast("dict[str, list[int]]", shapes)


def dataset_task(dataset: DatasetRef) -> str | None:
    """Return the task that a dataset was played on; None if it does not say.

    Raises:
        IntegrityError: Its page was changed.
    """
    return read_page(Path(str(dataset.root))).get("task")


def read_page(root: Path) -> dict[str, Any]:
    """Return our page about a dataset; empty for a dataset of another writer.

    Raises:
        IntegrityError: The page was changed.
    """
    path = root / _PAGE
    return read_sealed_json(path, kind="cadenza-dataset") if path.exists() else {}


def seed_page(root: Path) -> SeedPage:
    """Return what the dataset ``root`` says about its episodes.

    Raises:
        ConfigurationError: There is no dataset.
        IntegrityError: Its description or page is damaged.
    """
    total = _json(root / _INFO).get("total_episodes")
    if not isinstance(total, int) or total < 1:
        raise IntegrityError(f"{root / _INFO}: expected episodes, got {total!r} of them.")
    episodes: list[dict[str, Any]] = read_page(root).get("episodes", [])
    if episodes and len(episodes) != total:
        raise IntegrityError(
            f"{root / _PAGE}: expected a line for each of {total} episodes, got {len(episodes)}; "
            "restore the dataset, or remove this page of it."
        )
    return SeedPage(tuple(str(one["partner"]) for one in episodes), total)


def recorded_seeds(root: Path) -> tuple[int, ...] | None:
    """Return the initial-state seed of each episode of a dataset; None if it names none.

    Raises:
        IntegrityError: Its page was changed, or names something else as a seed.
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
    """Return what the sidecar of a checkpoint says about it: ``features``, ``task``, ``rung``.

    Raises:
        IntegrityError: Sidecar or weights are missing, or do not belong together.
        ConfigurationError: The sidecar does not say what the policy sees and does.
    """
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


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a dataset."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: expected the description of a LeRobotDataset v3.0, got '{error.strerror}'; "
            "check seed_root."
        ) from error
    return parse_json_object(data, source=str(path))
