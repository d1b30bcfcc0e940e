"""Kinds of values that flags take: what text each accepts, and its one canonical text.

A kind accepts fewer texts than the programs do: ASCII digits without signs, underscores or leading
zeros; ``true`` or ``false``. What a kind gives back it reads again as the same value.

Paths:   count with links and ``..`` resolved. What is written lies below the folder of the run, or
         of the job if that is known, never where the loop keeps its own files; neither in what is
         read nor around it.
Limits:  a link that is made after a command was cleared, and before it runs, is not seen.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias, cast

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.constitution.flags import ConstitutionError, denied, is_shown, quoted

#: Longest path we accept, characters; Linux's own limit.
MAX_PATH: Final = 4096
#: Names, directly in a run's folder, that begin those of the loop's own files.
_OWN_FILES: Final = ("events.jsonl", "incidents.jsonl")
_CYCLE: Final = re.compile(r"cycle_[0-9]+")


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of a run.

    Attributes:
        write: Folders below which a command may create things; usually the run's folder alone.
        read: Further folders that it may read: seed dataset, initial weights.
        job: The one folder, within one to write, that the command may create or fill; None for any.
    """

    write: tuple[Path, ...]
    read: tuple[Path, ...] = ()
    job: Path | None = None


def confined(key: str, text: str, roots: Roots | None, *, write: bool) -> Path:
    """Return the path that ``text`` names, absolute and without links.

    A relative path counts from the current folder. A path to write lies strictly below a root; a
    path to read may also be a root itself. Without ``roots`` its form alone is checked.

    Raises:
        ConstitutionError: It is malformed or lies elsewhere, or is the loop's own.
    """
    if len(text) > MAX_PATH or text.startswith("~") or "://" in text or "\\" in text:
        raise denied("malformed_path", f"expected a plain path for --{key}, got {quoted(text)}")
    try:
        resolved = Path(text).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise denied(
            "malformed_path", f"expected a path for --{key}, got {quoted(text)}: {error}"
        ) from error
    shown = str(resolved)
    if not all(map(is_shown, shown)) or shown != shown.strip():
        raise denied("malformed_path", f"expected --{key} to lead to a plain path, got {shown!a}")
    if roots is None:
        return resolved
    allowed = roots.write if write else (*roots.write, *roots.read)
    roots_of = [root.resolve() for root in allowed]
    if not any(resolved.is_relative_to(r) and not (write and resolved == r) for r in roots_of):
        raise denied(
            "path_outside_roots",
            f"expected --{key} below {' or '.join(map(str, allowed)) or 'no folder at all'}, got "
            + (quoted(text) if text == shown else f"{quoted(text)}, which is {quoted(shown)}"),
        )
    if write:
        _require_not_the_loops(key, resolved, roots)
    return resolved


def require_separate(read: Sequence[tuple[str, Path]], written: Sequence[tuple[str, Path]]) -> None:
    """Refuse what writes where it reads, around it, or where it writes something else."""
    for key, path in written:
        for other, source in read:
            if path.is_relative_to(source) or source.is_relative_to(path):
                raise denied(
                    "overlapping_paths",
                    f"expected --{key} apart from --{other}, got {quoted(str(path))}, which holds "
                    f"{quoted(str(source))} or lies in it",
                )
    for number, (key, path) in enumerate(written):
        for other, second in written[number + 1 :]:
            result, folder = (path, second) if key == "result-json" else (second, path)
            if folder.is_relative_to(result):
                raise denied(
                    "overlapping_paths",
                    f"expected --{key} and --{other} at different places, got "
                    f"{quoted(str(path))} and {quoted(str(second))}",
                )


def _require_not_the_loops(key: str, path: Path, roots: Roots) -> None:
    if roots.job is not None and not path.is_relative_to(roots.job.resolve()):
        raise denied(
            "path_outside_job",
            f"expected --{key} in the folder of the job, {roots.job}, got {quoted(str(path))}",
        )
    for root in roots.write:
        if not path.is_relative_to(root.resolve()):
            continue
        first, *rest = path.relative_to(root.resolve()).parts
        of_cycle = _CYCLE.fullmatch(first) is not None
        own = first.startswith(_OWN_FILES) or (
            of_cycle and (not rest or rest[0] == "jobs" or rest[0].endswith(".log"))
        )
        if own:
            raise denied(
                "file_of_the_loop",
                f"expected --{key} at a place of its own, got {quoted(str(path))}, which the loop "
                "writes itself",
            )


#: What a flag's text means.
Value: TypeAlias = bool | int | float | str | Path | tuple[int, ...] | tuple[str, ...]

#: Largest whole number of any flag: seeds are 63-bit.
MAX_INTEGER: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,19})?(?:[eE][+-]?[0-9]{1,3})?")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_REPOSITORY: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(?:/[A-Za-z0-9][A-Za-z0-9_.-]{0,99})?"
)
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: Endings of files that hold neither code nor pickles, in a folder of weights.
_DATA_FILES: Final = ("", ".json", ".safetensors", ".md", ".txt")
#: Keys of its JSON files that name code to import, or where to fetch some.
_CODE_KEYS: Final = frozenset(
    {"class", "target", "_target_", "parent_library", "hub_path", "base_model_path"}
    | {"trust_remote_code"}
)
#: Keys whose texts LeRobot, or what it loads, may take for a repository or a folder.
_SOURCE_KEYS: Final = re.compile(
    r"(.*_)?((name|pretrained)_or_path|auto_map|paths?|dirs?|folder|urls?"
    r"|(model|tokenizer|processor|encoder|repo|hub|checkpoint|pretrained)(_names?|_ids?)?)",
    re.IGNORECASE,
)
#: ... and texts that are one whatever their key: of a hub, and paths and addresses.
_SOURCES: Final = re.compile(rf"{_HUB_ID.pattern}|[/~.\\].*|[a-z0-9+]+://.*|.*\.\./.*", re.DOTALL)
#: Files of a folder of weights whose texts are no sources: of a training, and of vocabularies.
_NO_SOURCES: Final = ("train_config.json", "tokenizer.json", "vocab.json", "added_tokens.json")
#: What ``config.json`` keeps of the training that wrote it, and LeRobot sets anew from its flags.
_PAST: Final = frozenset({"pretrained_path", "repo_id"})
#: Letters that would end or split a path in a list.
_LIST_LETTERS: Final = frozenset(",[]{}\"'#")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a flag was given, and what its meaning may depend on.

    Attributes:
        roots: Folders of the run; None checks the form of paths alone.
        hub_policies: Hub repositories that weights may come from: ``owner/name`` or ``owner/*``.
    """

    key: str
    text: str
    roots: Roots | None = None
    hub_policies: tuple[str, ...] = ()

    def refusal(self, rule: str, expected: str) -> ConstitutionError:
        """Return the refusal by ``rule`` of a text that is not as ``expected``."""
        return denied(rule, f"expected --{self.key} {expected}, got {quoted(self.text)}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text means, and its canonical text."""

    value: Value
    text: str


class Kind(Protocol):
    """One kind of value."""

    def read(self, given: Given) -> Reading:
        """Return what the flag was given, or refuse what is no value of this kind."""
        ...


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in [low, high], written in ASCII digits alone."""

    low: int = 0
    high: int = MAX_INTEGER

    def read(self, given: Given) -> Reading:
        """Return the number."""
        if not _INTEGER.fullmatch(given.text):
            raise given.refusal("whole_number", "as a whole number of plain digits")
        return Reading(_in_range(given.key, int(given.text), self.low, self.high), given.text)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in [low, high]; signs are not accepted."""

    low: float = 0.0
    high: float = 1e12

    def read(self, given: Given) -> Reading:
        """Return the number."""
        if not _NUMBER.fullmatch(given.text) or not math.isfinite(float(given.text)):
            raise given.refusal("number", "as a finite number")
        value = float(given.text)
        return Reading(_in_range(given.key, value, self.low, self.high), repr(value))


@dataclass(frozen=True, slots=True)
class Boolean:
    """``true`` or ``false``; `rule` refuses what is not the `only` accepted one, if any."""

    only: bool | None = None
    rule: str = "boolean"

    def read(self, given: Given) -> Reading:
        """Return the truth value."""
        accepted = ("true", "false") if self.only is None else (str(self.only).lower(),)
        if given.text not in accepted:
            raise given.refusal(self.rule, f"as {' or '.join(accepted)}")
        return Reading(given.text == "true", given.text)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few names."""

    names: tuple[str, ...]

    def read(self, given: Given) -> Reading:
        """Return the name."""
        if given.text not in self.names:
            raise given.refusal("choice", f"as one of {', '.join(self.names)}")
        return Reading(given.text, given.text)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text of restricted letters."""

    pattern: re.Pattern[str] = _NAME
    summary: str = "a name of ASCII letters, digits and _ . -"

    def read(self, given: Given) -> Reading:
        """Return the text."""
        if not self.pattern.fullmatch(given.text) or ".." in given.text:
            raise given.refusal("name", f"as {self.summary}")
        return Reading(given.text, given.text)


@dataclass(frozen=True, slots=True)
class Text:
    """Words for people or language-conditioned policies; any printable letters."""

    longest: int = 500

    def read(self, given: Given) -> Reading:
        """Return the text."""
        if len(given.text) > self.longest:
            raise denied(
                "long_text",
                f"expected --{given.key} of at most {self.longest} letters, got {len(given.text)}",
            )
        return Reading(given.text, given.text)


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path within the run's roots, to read or to ``write``."""

    write: bool = False

    def read(self, given: Given) -> Reading:
        """Return the path, absolute and without links."""
        path = confined(given.key, given.text, given.roots, write=self.write)
        return Reading(path, str(path))


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy: a path within the run's roots, or an allowed repository of the hub.

    A folder is read whole: it may hold data only, and name no code but LeRobot's own steps.

    Attributes:
        types: Types of policies that a folder may hold, as its ``config.json`` says.
        steps: Processor steps that its pipelines may name.
        companions: Hub repositories that LeRobot fetches for these types, named or not.
    """

    types: tuple[str, ...]
    steps: tuple[str, ...]
    companions: tuple[str, ...] = ()

    def read(self, given: Given) -> Reading:
        """Return the path or the repository's name."""
        return self._read(given, adapted=())

    def _read(self, given: Given, adapted: tuple[Path, ...]) -> Reading:
        if not _HUB_ID.fullmatch(given.text) or ".." in given.text or os.path.lexists(given.text):
            reading = FilePath().read(given)
            if given.roots is not None:
                self._require_harmless(given, Path(reading.text), adapted)
            return reading
        if not listed_on_hub(given.text, given.hub_policies):
            raise denied(
                "allowed_hub_policies",
                f"expected --{given.key} as a path or "
                + (f"one of {list(given.hub_policies)}" if given.hub_policies else "a listed name")
                + f", got {quoted(given.text)}",
            )
        return Reading(given.text, given.text)

    def _require_harmless(self, given: Given, folder: Path, adapted: tuple[Path, ...]) -> None:
        """Raise if loading ``folder`` could run or fetch what no flag names.

        Nothing is there yet in a dry run. ``adapted`` are the folders whose adapters lead here,
        each with the next as its base.
        """
        if folder in adapted:
            return
        for path in sorted(folder.rglob("*")):
            if path.is_dir() or any(
                part.startswith(".") for part in path.relative_to(folder).parts
            ):
                continue  # LeRobot reads nothing hidden
            if path.suffix not in _DATA_FILES:
                raise denied(
                    "weights_file",
                    f"expected --{given.key} as a folder with {', '.join(_DATA_FILES[1:])} files "
                    f"alone, got {quoted(str(path.relative_to(folder)))}; remove it",
                )
            if path.suffix == ".json":
                self._require_harmless_json(given, path, (*adapted, folder))

    def _require_harmless_json(self, given: Given, path: Path, folders: tuple[Path, ...]) -> None:
        name = quoted(str(path.relative_to(folders[-1])))
        try:
            content = parse_json_object(path.read_bytes(), source=name)
        except (OSError, IntegrityError) as error:
            expected = f"expected --{given.key} as a folder with valid JSON files"
            raise denied("weights_file", f"{expected}, got {quoted(str(error))}") from error
        if (
            path == folders[-1] / "config.json"
            and content.get("type", self.types[0]) not in self.types
        ):
            raise denied(
                "policy_type",
                f"expected --{given.key} as a policy of {', '.join(self.types)}, got "
                f"{quoted(content.get('type'))} in {name}",
            )
        kept = _PAST & content.keys() if path == folders[-1] / "config.json" else frozenset[str]()
        for key, value in _entries({k: v for k, v in content.items() if k not in kept}):
            if key == "base_model_name_or_path" and isinstance(value, str):
                self._read(replace(given, text=value), folders)
                continue
            if isinstance(value, str) and path.name not in _NO_SOURCES:
                self._require_allowed_source(given, key, value, path, folders)
            if key == "registry_name":
                if value in self.steps:
                    continue
            elif key == "parent_library" and str(value).startswith("lerobot."):
                continue  # adapters are saved with the class of their base
            elif key not in _CODE_KEYS or value in (None, False) or isinstance(value, dict):
                continue
            raise denied(
                "weights_entry",
                f"expected --{given.key} as a folder that names no code but LeRobot's own steps, "
                f"got {key} = {quoted(value)} in {name}",
            )

    def _require_allowed_source(
        self, given: Given, key: str, value: str, path: Path, folders: tuple[Path, ...]
    ) -> None:
        """Raise if ``value`` names a repository, folder or file that the rules do not allow."""
        named = _SOURCE_KEYS.fullmatch(key) or _SOURCES.fullmatch(value)
        if not value or value in self.companions or not named:
            return
        try:
            if not (_HUB_ID.fullmatch(value) or Path(value).is_absolute()):
                raise given.refusal("relative_path", "without a relative path, or a bare name")
            self._read(replace(given, text=value), folders)
        except ConstitutionError as error:
            name = quoted(str(path.relative_to(folders[-1])))
            raise denied(
                "weights_source",
                f"expected --{given.key} as a folder that names no repositories but those of "
                f"allowed_hub_policies, and no folders but those that the run may read, got {key} "
                f"= {quoted(value)} in {name}; list it, or remove the entry",
            ) from error


def _entries(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield every key of nested JSON with its value; of lists, each item under their key."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _entries(item, key)
        return
    if key:
        yield key, value
    if isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            yield from _entries(item, name)


@dataclass(frozen=True, slots=True)
class Listing:
    """Several values of one kind: ``[a, b]`` with brackets, ``a,b`` without."""

    item: Kind
    brackets: bool = False
    longest: int = 100_000

    def read(self, given: Given) -> Reading:
        """Return the values, in order."""
        body = given.text
        if self.brackets:
            if not (body.startswith("[") and body.endswith("]")):
                raise given.refusal("list", "as [a, b, ...]")
            body = body[1:-1]
        parts = [part.strip() if self.brackets else part for part in body.split(",")]
        if len(parts) > self.longest or not all(parts):
            raise given.refusal("list", f"with 1 to {self.longest} items, none empty")
        readings = [self._read_item(replace(given, text=part)) for part in parts]
        joined = (", " if self.brackets else ",").join(reading.text for reading in readings)
        numbers = tuple(one.value for one in readings if isinstance(one.value, int))
        whole = len(numbers) == len(readings)
        values = numbers if whole else tuple(str(reading.value) for reading in readings)
        return Reading(values, f"[{joined}]" if self.brackets else joined)

    def _read_item(self, given: Given) -> Reading:
        def refuse(text: str) -> None:
            raise denied("list", f"expected plain items for --{given.key}, got {quoted(text)}")

        if given.text.startswith(("-", "@")) or _LIST_LETTERS & set(given.text):
            refuse(given.text)
        reading = self.item.read(given)
        if _LIST_LETTERS & set(reading.text):
            refuse(reading.text)
        return reading


@dataclass(frozen=True, slots=True)
class Renaming:
    """A JSON object of names: ``{"old": "new"}``."""

    item: Pattern = field(default_factory=Pattern)
    longest: int = 64

    def read(self, given: Given) -> Reading:
        """Return the object's canonical JSON."""
        try:
            names = parse_json_object(given.text.encode(), source=given.key)
        except IntegrityError as error:
            raise given.refusal("renaming", "as a JSON object") from error
        if len(names) > self.longest:
            raise given.refusal("renaming", f"of at most {self.longest} names")
        for name in (*names.keys(), *names.values()):
            if not isinstance(name, str):
                raise denied("renaming", f"expected names in --{given.key}, got {quoted(name)}")
            self.item.read(replace(given, text=name))
        canonical = json.dumps(names, sort_keys=True)
        return Reading(canonical, canonical)


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag without a value: there or not there."""

    def read(self, given: Given) -> Reading:
        """Refuse: where there is a text, a value was given."""
        raise given.refusal("switch_value", "without a value")


#: Kinds that several programs use.
NAME: Final = Pattern()
REPOSITORY: Final = Pattern(_REPOSITORY, "a dataset's name, owner/name")
DEVICE: Final = Pattern(re.compile(r"auto|cpu|mps|cuda(?::[0-9]{1,2})?"), "auto, cpu, mps, cuda")


def listed_on_hub(name: str, allowed: Sequence[str]) -> bool:
    """Return whether ``name``, a repository, or all of its owner's stand in ``allowed``."""
    return name in allowed or f"{name.partition('/')[0]}/*" in allowed


def _in_range(key: str, value: float, low: float, high: float) -> int | float:
    if not low <= value <= high:
        raise denied("range", f"expected --{key} in [{low}, {high}], got {value}")
    return value
