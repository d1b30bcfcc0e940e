"""What a zoo of partners holds: the sealed list of its members, with their digests and skill.

Layout of a zoo's folder:
    manifest.json         the `ZooManifest`, sealed: changed on disk means refused
    members/NAME.pt       a learned member's policies, with the sidecar of every checkpoint
Split:    of N ids in ascending order the first ⌈0.7 N⌉ are public, the rest are held out
          (`compute_split`); whole families are held out where their method says so.
"""

from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from cadenza.core.errors import (
    InputError,
    IntegrityError,
    UnknownNameError,
    did_you_mean,
    refuse,
)
from cadenza.core.strict_json import read_sealed_json, write_sealed_json
from cadenza.learn.settings import FrozenModel

#: Share of the ids that `compute_split` makes public.
PUBLIC_SHARE: Final = 0.7
MANIFEST_NAME: Final = "manifest.json"
MEMBERS_FOLDER: Final = "members"
_KIND: Final = "partner zoo"

Tier: TypeAlias = Literal["init", "mid", "final"]
Split: TypeAlias = Literal["public", "held_out"]


class Skill(FrozenModel):
    """How well a member does with its counterpart in the ego's place.

    Attributes:
        metric: ``"success"`` or ``"return"``.
        value: Mean over the episodes.
        low: Lower end of its 95 % interval; None where the episodes do not tell.
        high: Upper end.
        episodes: Number of episodes.
    """

    metric: Literal["success", "return"]
    value: float
    low: float | None
    high: float | None
    episodes: int

    def is_above(self, other: "Skill") -> bool:
        """Whether it is more than ``other``, beyond both intervals."""
        low = self.value if self.low is None else self.low
        return low > (other.value if other.high is None else other.high)


class ZooMember(FrozenModel):
    """One partner of a zoo.

    Attributes:
        name: Its name, unique in the zoo.
        family: Method that made it, e.g. ``fcp``.
        class_name: Registered partner class that plays it.
        options: Options of that class, text to text.
        sha256: Digest of the bytes of its checkpoint; None for a scripted member.
        seed: Seed of its training.
        step: Environment steps it was trained for.
        tier: Where in its training it was taken.
        split: Whether egos may train with it.
        counterpart: Member whose policy plays the ego in ``skill`` and ``features``; None if a
            scripted member has none.
        skill: Return or success beside the counterpart; None without one.
        began: Of a final tier, what it scored in the same episodes before its training, when it was
            its own counterpart; None where that is no measure of learning.
        features: Mean events per episode beside the counterpart, by name.
        preference: Weights of the events it was trained to seek or shun; empty if none.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    family: str
    class_name: str
    options: dict[str, str] = Field(default_factory=dict[str, str])
    sha256: str | None = None
    seed: int = 0
    step: int = 0
    tier: Tier = "final"
    split: Split = "public"
    counterpart: str | None = None
    skill: Skill | None = None
    began: Skill | None = None
    features: dict[str, float] = Field(default_factory=dict[str, float])
    preference: dict[str, float] = Field(default_factory=dict[str, float])

    @property
    def is_unlearned(self) -> bool:
        """Whether its skill is not above what it began with, beyond both intervals."""
        return not (self.skill is None or self.began is None or self.skill.is_above(self.began))

    @property
    def file(self) -> str:
        """Name of its checkpoint below the zoo's folder."""
        return f"{MEMBERS_FOLDER}/{self.name}.pt"

    def played(self, place: str) -> dict[str, Any]:
        """Return who plays it, as fields of a partner; its zoo's address is ``place``."""
        if self.sha256 is None:
            return {"class_name": self.class_name, "extra": self.options}
        return {
            "class_name": self.class_name,
            "seed": self.seed,
            "checkpoint_step": self.step,
            "weights_uri": f"{place}{self.file}",
        }


class ZooManifest(FrozenModel):
    """A zoo.

    Attributes:
        task: Registered task.
        task_version: Its version.
        task_sha256: Digest of the task's description and of the settings it was played with.
        episode_length: Control steps until truncation.
        options: Settings of the task's environment.
        code_sha256: Digest of the code that trained and measured the members.
        package_version: Version of the package.
        requests: What was asked for: one training configuration or one selection.
        members: The partners.
        selection: How they were selected, as JSON values; None in a zoo that was trained.
    """

    task: str
    task_version: int
    task_sha256: str
    episode_length: int
    options: dict[str, bool | int | float | str]
    code_sha256: str
    package_version: str
    requests: list[dict[str, Any]]
    members: tuple[ZooMember, ...]
    selection: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [member.name for member in self.members]
        if len(set(names)) != len(names):
            raise ValueError(f"members: expected distinct names, got {names}")
        return self

    @property
    def unlearned(self) -> list[str]:
        """Members that training did not make better."""
        return [member.name for member in self.members if member.is_unlearned]

    def member(self, name: str) -> ZooMember:
        """Return the member called ``name``.

        Raises:
            UnknownNameError: There is none; lists the known names.
        """
        names = [member.name for member in self.members]
        if name not in names:
            raise UnknownNameError(
                f"zoo member {name!r}: expected one of {', '.join(names)}"
                f"{did_you_mean(name, names)}."
            )
        return self.members[names.index(name)]


def write_manifest(folder: Path, manifest: ZooManifest) -> None:
    """Seal ``manifest`` into ``folder``."""
    write_sealed_json(folder / MANIFEST_NAME, manifest.model_dump(mode="json"), kind=_KIND)


def require_zoo(folder: Path, error: type[Exception]) -> None:
    """Raise ``error`` unless there is a manifest in ``folder``."""
    if (folder / MANIFEST_NAME).is_file():
        return
    got = f"no {MANIFEST_NAME} in it" if folder.is_dir() else "no such folder"
    do = "make one with `cadenza zoo train`, or name the folder of another"
    refuse(error, str(folder), expected="a zoo", got=got, do=do)


def read_manifest(folder: Path) -> ZooManifest:
    """Return the manifest of the zoo in ``folder``.

    Raises:
        IntegrityError: It is missing, changed or of another kind.
    """
    require_zoo(folder, IntegrityError)
    facts = read_sealed_json(folder / MANIFEST_NAME, kind=_KIND)
    try:
        return ZooManifest.model_validate(facts)
    except ValidationError as error:
        raise IntegrityError(f"{folder / MANIFEST_NAME}: expected a zoo, got {error}") from error


def compute_split(ids: Iterable[str]) -> dict[str, Split]:
    """Return public or held out for every id: the first ⌈0.7 N⌉ in ascending order are public.

    Raises:
        InputError: An id occurs twice.
    """
    ordered = sorted(ids)
    if len(set(ordered)) != len(ordered):
        raise InputError(f"compute_split: expected distinct ids, got {ordered}.")
    public = ceil(PUBLIC_SHARE * len(ordered))
    return {name: "public" if k < public else "held_out" for k, name in enumerate(ordered)}
