"""Populations to train with: zoos, partners by name and descriptions of partners, as partners.

A zoo stands for its public members, each by its address and the digest that the sealed manifest
names; held-out members are refused, because egos are judged beside them. Zoos tell the settings
that their members were trained in: those of the task must be the same.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cadenza.aht.config import EnvConfig, PartnerConfig, ZooRecord
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.core.files import sha256_file
from cadenza.partners.registry import list_registered
from cadenza.partners.zoo_manifest import (
    MANIFEST_NAME,
    ZooManifest,
    ZooMember,
    read_manifest,
    require_zoo,
)
from cadenza.partners.zoo_member import ZOO_MEMBER

#: The folder of a zoo, the name of a partner class, or the fields of a `PartnerConfig`.
Member: TypeAlias = str | Path | Mapping[str, Any] | PartnerConfig
#: One of them, or several.
Members: TypeAlias = Member | Sequence[Member]


class Population(NamedTuple):
    """Partners to train with.

    Attributes:
        partners: Each of them.
        zoos: The zoos they are from.
        options: Settings of the task that the zoos' members were trained in; None without a zoo.
        episode_length: Control steps of their episodes; None without a zoo.
    """

    partners: tuple[PartnerConfig, ...]
    zoos: tuple[ZooRecord, ...]
    options: Mapping[str, bool | int | float | str] | None
    episode_length: int | None


def population(task: str, members: Members) -> Population:
    """Return the partners that ``members`` stand for.

    Raises:
        ConfigurationError: There is none, a zoo is of another task or of other settings than
            another one, or has no public member; a held-out member is named.
        IntegrityError: A manifest was changed.
        pydantic.ValidationError: A description is none of a partner.
    """
    single = isinstance(members, str | Path | Mapping | PartnerConfig)
    given: Sequence[Any] = [members] if single else list(members)
    partners: list[PartnerConfig] = []
    zoos: list[tuple[ZooRecord, ZooManifest]] = []
    for each in given:
        if isinstance(each, Path) or (isinstance(each, str) and _is_zoo(each)):
            folder = Path(each)
            manifest = _manifest(folder, task)
            public = _public(folder, manifest)
            partners += [_partner(folder, member) for member in public]
            names = tuple(member.name for member in public)
            record = ZooRecord(
                zoo=folder.as_posix(), sha256=sha256_file(folder / MANIFEST_NAME), members=names
            )
            zoos.append((record, manifest))
        elif isinstance(each, str) and each not in list_registered():
            expected = "the folder of a zoo or the name of a partner class"
            do = "`cadenza zoo list` and `cadenza partners list` print them"
            refuse(ConfigurationError, "partners", expected=expected, got=repr(each), do=do)
        else:
            partners.append(PartnerConfig.model_validate(each))
    if not partners:
        refuse(ConfigurationError, "partners", expected="at least one partner", got="none")
    refuse_held_out(partners)
    settings = [(manifest.options, manifest.episode_length) for _, manifest in zoos]
    if any(each != settings[0] for each in settings):
        told = "; ".join(f"{record.zoo}: {m.options}, {m.episode_length}" for record, m in zoos)
        expected = "zoos of the same settings and episode length"
        refuse(ConfigurationError, "partners", expected=expected, got=told)
    options, length = settings[0] if settings else (None, None)
    return Population(tuple(partners), tuple(record for record, _ in zoos), options, length)


def beside_zoos(settings: Mapping[str, Any], zoos: Sequence[str | Path]) -> dict[str, Any]:
    """Return the settings of a training, unchecked, beside the public members of ``zoos``.

    They replace the one partner of the settings, or join several. The task has the zoos' options
    where the settings name none.

    Raises:
        ConfigurationError: As `population`; or the task has other options than the zoos.
    """
    env, agreed = dict(settings.get("env") or {}), dict(settings)
    crowd = population(str(env.get("task")), list(zoos))
    spec = get_task(str(env.get("task")))
    told = spec.complete_options(crowd.options or {})
    own = env.get("options") or told
    if spec.complete_options(own) != told:
        do = "remove env.options, or choose a zoo of this task's settings"
        refuse(
            ConfigurationError, "env.options", expected=f"{told}, as the zoo has", got=own, do=do
        )
    uid = tuple(env.get("agent_uids") or EnvConfig.model_fields["agent_uids"].default)[1]
    members = [p.model_copy(update={"extra": {"uid": uid, **p.extra}}) for p in crowd.partners]
    agreed.pop("partner", None)
    return {
        **agreed,
        "env": {**env, "options": dict(crowd.options or {})},
        "partners": [*(settings.get("partners") or ()), *(m.model_dump() for m in members)],
        "zoos": [record.model_dump() for record in crowd.zoos],
    }


def refuse_held_out(partners: Sequence[PartnerConfig]) -> None:
    """Refuse members of zoos that are kept to judge egos beside.

    Raises:
        ConfigurationError: There is one.
    """
    for partner in partners:
        if partner.class_name != ZOO_MEMBER or partner.weights_uri is None:
            continue
        file = Path(partner.extra.get("root", ""), partner.weights_uri.removeprefix("local://"))
        folder = file.parent.parent
        if not _is_zoo(folder):
            continue  # whoever loads the member says so
        if read_manifest(folder).member(file.stem).split == "held_out":
            refuse(
                ConfigurationError,
                f"partner {file.stem} of {folder.as_posix()}",
                expected="a public member",
                got="one that is held out",
                do="train with public ones; `cadenza zoo matrix` judges beside the held-out ones",
            )


def _is_zoo(place: str | Path) -> bool:
    return (Path(place) / MANIFEST_NAME).is_file()


def _manifest(folder: Path, task: str) -> ZooManifest:
    require_zoo(folder, ConfigurationError)
    manifest = read_manifest(folder)
    if manifest.task != task:
        got = f"one of {manifest.task!r}"
        refuse(ConfigurationError, str(folder), expected=f"a zoo of task {task!r}", got=got)
    return manifest


def _public(folder: Path, manifest: ZooManifest) -> list[ZooMember]:
    """Return the members that egos may train with."""
    public = [member for member in manifest.members if member.split == "public"]
    if not public:
        refuse(
            ConfigurationError,
            str(folder),
            expected="a zoo with public members",
            got=f"{len(manifest.members)} that are held out",
            do="train with another zoo; `cadenza zoo matrix` judges beside the held-out ones",
        )
    return public


def _partner(folder: Path, member: ZooMember) -> PartnerConfig:
    """Return who plays a member; a folder that the address cannot name is its option ``root``."""
    if member.sha256 is None:
        return PartnerConfig(class_name=member.class_name, extra=member.options)
    is_plain = not folder.is_absolute() and ".." not in folder.parts
    root = {} if is_plain else {"root": folder.parent.as_posix()}
    place = folder.as_posix() if is_plain else folder.name
    return PartnerConfig(
        class_name=member.class_name,
        weights_uri=f"local://{place}/{member.file}",
        weights_sha256=member.sha256,
        extra={**member.options, **root},
    )
