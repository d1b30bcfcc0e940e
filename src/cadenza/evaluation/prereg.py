"""Preregistration: what a run will do is written down, committed and tagged before it starts.

Forms:    `PreregistrationSpec` for one axis of a spike, `PreregDocument` for everything else, whose
          ``parameters`` hold frozen blocks (``evaluation``, ``admission``, ...).
Lock:     the file's bytes must be those of the file at its own path in the tree of its git tag: an
          edit shifts the blob, another file at the tag does not count. A change needs a new tag.
Limits:   a tag can be moved by whoever owns the repository; signed tags (``git tag -v``) and the
          tag object that a bundle records are what shows that. Bytes are compared as they are, so
          filters that convert line endings have to be off.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from cadenza.core.errors import ConfigurationError, IntegrityError, PreregistrationError
from cadenza.core.git import blobs_at_tag, git_blob_sha, run_git, tag_object
from cadenza.core.yaml_files import has_aliases, parse_yaml_document
from cadenza.evaluation.results import (
    Archive,
    ConditionPair,
    Identifier,
    Integer,
    SpikeRun,
    unique_seeds,
)

#: Axes in the order of their stages.
CANONICAL_AXIS_ORDER: Final = ("AS", "OM", "CR", "CM", "PF", "SA")
#: What a command ends with when a registration does not hold.
PREREG_MISMATCH_EXIT_CODE: Final = 4
#: Version of the document form.
PREREG_SCHEMA_VERSION: Final = 1
#: Estimators that a registration of an axis may name, beside the identity strings that archives
#: carry (``statistic/design/interval/version``).
NAMED_ESTIMATORS: Final = ("iqm_success_rate", "mean_success_rate")
#: Largest registration we read, bytes: a hundred times a long one.
MAX_PREREG_BYTES: Final = 1 << 20

BootstrapMethod = Literal["cluster", "hierarchical", "iid"]
FailurePolicy = Literal["strict", "best_effort"]
RunPurpose = Literal["power", "leaderboard", "debug"]


class PreregistrationSpec(Archive):
    """One axis: which conditions are compared, on which seeds, and how the gap is estimated.

    Attributes:
        bootstrap_method: ``hierarchical`` means ``cluster``; ``iid`` ignores that episodes of one
            seed go together, so a leaderboard run may not use it.
        failure_policy: ``strict`` ends at the first seed that fails; ``best_effort`` reports it.
        git_tag: Tag that locks the file.
        run_purpose: Only ``leaderboard`` runs are ranked.
    """

    axis: Identifier
    condition_pair: ConditionPair
    seeds: list[Integer]
    episodes_per_seed: Annotated[int, Field(strict=True, gt=0)]
    estimator: Identifier
    bootstrap_method: BootstrapMethod = "cluster"
    failure_policy: FailurePolicy = "strict"
    git_tag: Identifier
    notes: str = ""
    run_purpose: RunPurpose = "leaderboard"

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, value: list[int]) -> list[int]:
        return unique_seeds("PreregistrationSpec.seeds", value)

    @field_validator("estimator")
    @classmethod
    def _estimator_is_known(cls, value: str) -> str:
        if value not in NAMED_ESTIMATORS and value.count("/") < 2:
            raise ValueError(
                f"PreregistrationSpec.estimator: expected {' or '.join(NAMED_ESTIMATORS)}, or an "
                f"identity such as 'rate/cluster/korn-graubard/v1', got {value!r}."
            )
        return value

    @model_validator(mode="after")
    def _ranked_runs_respect_clusters(self) -> Self:
        if self.run_purpose == "leaderboard" and self.bootstrap_method == "iid":
            raise ValueError(
                "PreregistrationSpec.bootstrap_method: expected 'cluster' for a leaderboard run, "
                "got 'iid'; it understates the interval where episodes share a seed."
            )
        return self

    def normalised_axis(self) -> str:
        """Return the axis.

        Raises:
            ConfigurationError: It is none of the six.
        """
        if self.axis not in CANONICAL_AXIS_ORDER:
            raise ConfigurationError(
                f"PreregistrationSpec.axis: expected one of {sorted(CANONICAL_AXIS_ORDER)}, got "
                f"{self.axis!r}."
            )
        return self.axis


class PreregDocument(Archive):
    """A protocol in blocks: what ``parameters`` holds is fixed, ``decision_rules`` say what for."""

    schema_version: Literal[1] = PREREG_SCHEMA_VERSION
    task_id: Identifier
    git_tag: Identifier
    parameters: dict[str, Any]
    decision_rules: str
    revision: str = ""
    notes: str = ""


Preregistration = PreregistrationSpec | PreregDocument


def parse_prereg(content: bytes, *, source: str) -> Preregistration:
    """Return the registration that a file's bytes hold; the key ``axis`` tells the forms apart.

    Raises:
        ConfigurationError: Too large, not YAML, not a mapping, with aliases, or no known axis.
        pydantic.ValidationError: The mapping has the wrong shape.
    """
    if len(content) > MAX_PREREG_BYTES:
        raise ConfigurationError(
            f"{source}: expected at most {MAX_PREREG_BYTES} bytes, got {len(content)}."
        )
    if has_aliases(content):
        raise ConfigurationError(
            f"{source}: expected every value written out, got an alias (*name); repeat the value."
        )
    data = parse_yaml_document(content, source=source).content
    if not isinstance(data, dict | None):
        raise ConfigurationError(f"{source}: expected a mapping, got {type(data).__name__}.")
    if "axis" not in (data or {}):
        return PreregDocument.model_validate(data or {})
    spec = PreregistrationSpec.model_validate(data)
    spec.normalised_axis()
    return spec


def load_prereg(path: Path) -> PreregistrationSpec:
    """Return the registration of an axis.

    Raises:
        FileNotFoundError: There is no such file.
        ConfigurationError: Not YAML, or the axis is none of the six.
        pydantic.ValidationError: The file has another shape.
    """
    found = parse_prereg(path.read_bytes(), source=str(path))
    own = isinstance(found, PreregistrationSpec)
    return found if own else PreregistrationSpec.model_validate(found.model_dump())


def load_prereg_document(path: Path) -> PreregDocument:
    """Return the registration of a protocol in blocks; errors as `load_prereg`."""
    found = parse_prereg(path.read_bytes(), source=str(path))
    own = isinstance(found, PreregDocument)
    return found if own else PreregDocument.model_validate(found.model_dump())


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRegistration:
    """A registered protocol as a git tag locks it.

    Attributes:
        content: Bytes of the file.
        git_tag: The tag.
        path: Where the file is in the tag's tree; empty in older bundles.
        tag_object: Object that the tag named; empty in older bundles.
    """

    content: bytes
    git_tag: str
    path: str = ""
    tag_object: str = ""

    @property
    def blob_sha(self) -> str:
        """Git's object id of the content, 40 hex digits."""
        return git_blob_sha(self.content)

    @property
    def protocol(self) -> Preregistration:
        """What it registers; errors as `parse_prereg`."""
        return parse_prereg(self.content, source=self.path or "prereg.yaml")


def verify_git_tag(spec: Preregistration, prereg_path: Path, *, repo_path: Path) -> str:
    """Return the blob of the file ``prereg_path`` if the tag of ``spec`` locks exactly it.

    Raises:
        PreregistrationError: No such tag, a file outside the repository, one that the tag does not
            hold at this path, other bytes than those at the tag, or git failed.
    """
    return locked_registration(spec.git_tag, prereg_path, repo_path=repo_path).blob_sha


def locked_registration(git_tag: str, prereg_path: Path, *, repo_path: Path) -> LockedRegistration:
    """Return the file ``prereg_path`` if ``git_tag`` locks exactly it; errors as `verify_git_tag`.

    The path may be relative to ``repo_path``.
    """
    root, path = repo_path.resolve(), (repo_path / prereg_path).resolve()
    if not path.is_relative_to(root):
        raise PreregistrationError(
            f"{prereg_path}: expected a file in {root}, got {path}, outside repo; copy it in."
        )
    try:
        content = path.read_bytes()
        top = Path(os.fsdecode(run_git(root, "rev-parse", "--show-toplevel").rstrip(b"\n")))
        name = path.relative_to(top.resolve()).as_posix()
        tagged = blobs_at_tag(root, git_tag, path=name).get(name, "none at this path")
        named = tag_object(root, git_tag)
    except IntegrityError as error:
        raise PreregistrationError(
            f"tag {git_tag!r}: expected it in {root}, but the tag does not exist or git failed "
            f"({error}); fetch it, or register with `cadenza prereg freeze`."
        ) from error
    except OSError as error:
        raise PreregistrationError(f"{path}: expected a file, got '{error.strerror}'.") from error
    found = LockedRegistration(content=content, git_tag=git_tag, path=name, tag_object=named)
    if found.blob_sha != tagged:
        raise PreregistrationError(
            f"{name}: expected blob {tagged}, which tag {git_tag!r} locks, got {found.blob_sha}; "
            "the file was edited after its registration: restore it, or register under a new tag."
        )
    return found


def freeze_registration(
    spec: Preregistration, prereg_path: Path, *, repo_path: Path
) -> LockedRegistration:
    """Put the annotated tag of ``spec`` on the last commit, which must hold the file as it is.

    A tag that is there already is left alone; errors as `verify_git_tag`.
    """
    name = str(prereg_path)
    try:
        tag_object(repo_path, spec.git_tag)
    except IntegrityError:
        message = f"Register {prereg_path.name}"
        try:
            tracked = run_git(repo_path, "ls-files", "--", name)
            if tracked and not run_git(repo_path, "status", "--porcelain", "--", name):
                run_git(repo_path, "tag", "--annotate", "--message", message, "--", spec.git_tag)
        except IntegrityError as error:
            raise PreregistrationError(f"{name}: {error}.") from error
    try:
        return locked_registration(spec.git_tag, prereg_path, repo_path=repo_path)
    except PreregistrationError as error:
        raise PreregistrationError(f"{error} Is {name} as the last commit has it?") from error


def run_differences(spec: PreregistrationSpec, run: SpikeRun) -> list[str]:
    """Return how ``run`` departs from what ``spec`` registers; empty if it does not."""
    pairs: dict[str, tuple[object, object]] = {
        "axis": (spec.axis, run.axis),
        "git_tag": (spec.git_tag, run.git_tag),
        "seeds": (spec.seeds, run.seeds),
        "condition_pair": (spec.condition_pair, run.condition_pair),
    }
    found = [
        f"{name}: {wanted} registered, {got} run"
        for name, (wanted, got) in pairs.items()
        if wanted != got
    ]
    sides = (run.condition_pair.homogeneous_id, run.condition_pair.heterogeneous_id)
    cells = dict.fromkeys(((seed, side) for seed in spec.seeds for side in sides), 0)
    for episode in run.episode_results:
        key = (episode.seed, episode.condition or "")
        cells[key] = cells.get(key, 0) + 1
    return found + [
        f"episodes of seed {seed}, {side!r}: {spec.episodes_per_seed} registered, {count} run"
        for (seed, side), count in cells.items()
        if count != spec.episodes_per_seed
    ]
