"""Kinds of values that jobs have: how words spell each, and which values are accepted.

A kind reads fewer texts than the programs do: ASCII digits without signs, underscores or leading
zeros; ``true`` or ``false``. What it spells it reads again as the same value.

Paths:   count with links and ``..`` resolved. What is written lies below the folder of the run, or
         of the job if that is known, never where the loop keeps its own files; neither in what is
         read nor around it.
Weights: a folder is read whole: it may hold data only, and name no code but LeRobot's own steps.
Limits:  a link that is made after a command was cleared, and before it runs, is not seen.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.constitution.flags import ConstitutionError, denied, is_shown, quoted

#: Longest path we accept, characters; Linux's own limit.
MAX_PATH: Final = 4096
#: Names, directly in a run's folder, that begin those of the loop's own files.
_OWN_FILES: Final = ("events.jsonl", "incidents.jsonl")
_CYCLE: Final = re.compile(r"cycle_[0-9]+")
#: Largest whole number of any flag: seeds are 63-bit.
MAX_INTEGER: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,19})?(?:[eE][+-]?[0-9]{1,3})?")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: Letters that would end or split an item of a list.
_LIST_LETTERS: Final = frozenset(",[]{}\"'#")


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


@dataclass(frozen=True, slots=True)
class Given:
    """The flag ``key`` that a value is given to, and what its meaning may depend on.

    Attributes:
        roots: Folders of the run; None checks the form of paths alone.
        hub_policies: Hub repositories that weights may come from: ``owner/name`` or ``owner/*``.
    """

    key: str
    roots: Roots | None = None
    hub_policies: tuple[str, ...] = ()

    def refusal(self, rule: str, expected: str, got: object) -> ConstitutionError:
        """Return the refusal by ``rule`` of what is not as ``expected``."""
        return denied(rule, f"expected --{self.key} {expected}, got {quoted(got)}")


#: What a flag's text means; the type is that of the job's field.
Value: TypeAlias = Any


class Kind:
    """One kind of value; this one takes any text."""

    def parse(self, text: str, given: Given) -> Value:
        """Return what ``text`` spells, or refuse what is no spelling of this kind."""
        del given
        return text

    def check(self, value: Value, given: Given) -> Value:
        """Return ``value`` as it may be used, or refuse it."""
        del given
        return value

    def spell(self, value: Value) -> str:
        """Return the one text of ``value``."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Integer(Kind):
    """A whole number in [low, high], written in ASCII digits alone."""

    low: int = 0
    high: int = MAX_INTEGER

    def parse(self, text: str, given: Given) -> int:
        """Return the number."""
        if not _INTEGER.fullmatch(text):
            raise given.refusal("whole_number", "as a whole number of plain digits", text)
        return int(text)

    def check(self, value: Value, given: Given) -> int:
        """Refuse numbers out of range, and what is none."""
        if type(value) is not int:  # True is an int, too
            raise given.refusal("whole_number", "as a whole number", value)
        return cast("int", _in_range(given.key, value, self.low, self.high))


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A finite number in [low, high]; signs are not accepted."""

    low: float = 0.0
    high: float = 1e12

    def parse(self, text: str, given: Given) -> float:
        """Return the number."""
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise given.refusal("number", "as a finite number", text)
        return float(text)

    def check(self, value: Value, given: Given) -> float:
        """Refuse numbers out of range, and what is none."""
        if type(value) not in (int, float):
            raise given.refusal("number", "as a number", value)
        return float(_in_range(given.key, value, self.low, self.high))

    def spell(self, value: Value) -> str:
        """Return the shortest digits that mean this float."""
        return repr(float(value))


@dataclass(frozen=True, slots=True)
class Boolean(Kind):
    """``true`` or ``false``; `rule` refuses what is not the `only` accepted one, if any."""

    only: bool | None = None
    rule: str = "boolean"

    def parse(self, text: str, given: Given) -> bool:
        """Return the truth value."""
        if text not in ("true", "false"):
            raise given.refusal(self.rule, "as true or false", text)
        return text == "true"

    def check(self, value: Value, given: Given) -> bool:
        """Refuse the value that is not accepted."""
        if type(value) is not bool or self.only not in (None, value):
            accepted = "true or false" if self.only is None else str(self.only).lower()
            raise given.refusal(self.rule, f"as {accepted}", str(value).lower())
        return value

    def spell(self, value: Value) -> str:
        """Return the word."""
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few names."""

    names: tuple[str, ...]

    def check(self, value: Value, given: Given) -> str:
        """Refuse other names."""
        if value not in self.names:
            raise given.refusal("choice", f"as one of {', '.join(self.names)}", value)
        return value


@dataclass(frozen=True, slots=True)
class Pattern(Kind):
    """A text of restricted letters."""

    pattern: re.Pattern[str] = _NAME
    summary: str = "a name of ASCII letters, digits and _ . -"

    def check(self, value: Value, given: Given) -> str:
        """Refuse other letters, and two dots in a row."""
        if not isinstance(value, str) or not self.pattern.fullmatch(value) or ".." in value:
            raise given.refusal("name", f"as {self.summary}", value)
        return value


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Words for people or language-conditioned policies; any printable letters."""

    longest: int = 500

    def check(self, value: Value, given: Given) -> str:
        """Refuse long texts."""
        if len(str(value)) > self.longest:
            expected = f"expected --{given.key} of at most {self.longest} letters"
            raise denied("long_text", f"{expected}, got {len(str(value))}")
        return value


@dataclass(frozen=True, slots=True)
class FilePath(Kind):
    """A path within the run's roots, to read or to ``write``."""

    write: bool = False

    def check(self, value: Value, given: Given) -> Path:
        """Return the path, absolute and without links."""
        return confined(given.key, str(value), given.roots, write=self.write)


@dataclass(frozen=True, slots=True)
class Listing(Kind):
    """Several values of one kind: ``[a, b]`` with brackets, ``a,b`` without."""

    item: Kind
    brackets: bool = False
    longest: int = 100_000

    def parse(self, text: str, given: Given) -> tuple[Value, ...]:
        """Return the values, in order."""
        body = text
        if self.brackets:
            if not (body.startswith("[") and body.endswith("]")):
                raise given.refusal("list", "as [a, b, ...]", text)
            body = body[1:-1]
        parts = [part.strip() if self.brackets else part for part in body.split(",")]
        for part in parts:
            self._require_plain(given, part)
        return tuple(self.item.parse(part, given) for part in parts)

    def check(self, value: Value, given: Given) -> tuple[Value, ...]:
        """Check every item, and that it stays one when they are joined."""
        if not 1 <= len(value) <= self.longest:
            raise given.refusal("list", f"with 1 to {self.longest} items", value)
        items = tuple(self.item.check(one, given) for one in value)
        for item in items:
            self._require_plain(given, self.item.spell(item))
        return items

    def spell(self, value: Value) -> str:
        """Return the joined items."""
        joined = (", " if self.brackets else ",").join(self.item.spell(one) for one in value)
        return f"[{joined}]" if self.brackets else joined

    def _require_plain(self, given: Given, text: str) -> None:
        if not text or text.startswith(("-", "@")) or _LIST_LETTERS & set(text):
            raise denied("list", f"expected plain items for --{given.key}, got {quoted(text)}")


@dataclass(frozen=True, slots=True)
class Renaming(Kind):
    """A JSON object of names: ``{"old": "new"}``."""

    longest: int = 64

    def parse(self, text: str, given: Given) -> dict[str, Value]:
        """Return the object."""
        try:
            return parse_json_object(text.encode(), source=given.key)
        except IntegrityError as error:
            raise given.refusal("renaming", "as a JSON object", text) from error

    def check(self, value: Value, given: Given) -> dict[str, str]:
        """Refuse what are no names."""
        names = cast("dict[str, Value]", value)
        if len(names) > self.longest:
            raise given.refusal("renaming", f"as an object of at most {self.longest} names", names)
        for name in (*names, *names.values()):
            if not isinstance(name, str):
                raise denied("renaming", f"expected names in --{given.key}, got {quoted(name)}")
            NAME.check(name, given)
        return names

    def spell(self, value: Value) -> str:
        """Return the object's canonical JSON."""
        return json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """A flag without a value: there or not there."""

    def parse(self, text: str, given: Given) -> bool:
        """Refuse: where there is a text, a value was given."""
        raise given.refusal("switch_value", "without a value", text)


@dataclass(frozen=True, slots=True)
class Spelled(Kind):
    """A number, ``true``, ``false``, a plain name, or ``[a, b]`` of these, as the text spells it.

    No path and no repository can be spelled so. YAML's other words for truth and numbers, which
    programs may take for either, are refused.
    """

    def parse(self, text: str, given: Given) -> Value:
        """Return the value of the spelling."""
        if text.startswith("["):
            return Listing(self, brackets=True, longest=64).parse(text, given)
        if _INTEGER.fullmatch(text):
            return int(text)
        if text[0].isdigit() or text.lower() in ("nan", "inf", "infinity"):
            return Number().parse(text, given)
        if text in ("true", "false") or text.lower() in ("true", "false", "yes", "no", "on", "off"):
            return Boolean().parse(text, given)
        return text

    def check(self, value: Value, given: Given) -> Value:
        """Check the value by its type."""
        if isinstance(value, tuple):
            return Listing(self, brackets=True, longest=64).check(value, given)
        if type(value) in (int, float):
            return _in_range(given.key, value, 0.0, 1e12)
        return value if type(value) is bool else NAME.check(value, given)

    def spell(self, value: Value) -> str:
        """Return the text."""
        if isinstance(value, tuple):
            return Listing(self, brackets=True).spell(value)
        return Boolean().spell(value) if type(value) is bool else str(value)


def _in_range(key: str, value: float, low: float, high: float) -> int | float:
    if not low <= value <= high:  # written this way round so that NaN fails too
        raise denied("range", f"expected --{key} in [{low}, {high}], got {value}")
    return value


#: Kinds that several programs use.
NAME: Final = Pattern()
NAMES: Final = Listing(NAME, longest=1000)
REPOSITORY: Final = Pattern(
    re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,99}}|{_HUB_ID.pattern}"),
    "a dataset's name, owner/name",
)
DEVICE: Final = Pattern(re.compile(r"auto|cpu|mps|cuda(?::[0-9]{1,2})?"), "auto, cpu, mps, cuda")
COUNT: Final = Integer(1)
WHOLE: Final = Integer(0, 10**9)
SIZE: Final = Integer(1, 2**16)
TRUTH: Final = Boolean()
READ: Final = FilePath()
WRITE: Final = FilePath(write=True)


def listed_on_hub(name: str, allowed: Sequence[str]) -> bool:
    """Return whether ``name``, a repository, or all of its owner's stand in ``allowed``."""
    return name in allowed or f"{name.partition('/')[0]}/*" in allowed


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


@dataclass(frozen=True, slots=True)
class Weights(Kind):
    """A policy: a path within the run's roots, or an allowed repository of the hub.

    Attributes:
        types: Types of policies that a folder may hold, as its ``config.json`` says.
        steps: Processor steps that its pipelines may name.
        companions: Hub repositories that LeRobot fetches for these types, named or not.
    """

    types: tuple[str, ...]
    steps: tuple[str, ...]
    companions: tuple[str, ...] = ()

    def check(self, value: Value, given: Given) -> Path | str:
        """Return the path or the repository's name."""
        return self._checked(str(value), given, adapted=())

    def _checked(self, text: str, given: Given, adapted: tuple[Path, ...]) -> Path | str:
        if not _HUB_ID.fullmatch(text) or ".." in text or os.path.lexists(text):
            folder = READ.check(text, given)
            if given.roots is not None:
                self._require_harmless(folder, given, adapted)
            return folder
        if not listed_on_hub(text, given.hub_policies):
            listed = f"one of {list(given.hub_policies)}" if given.hub_policies else "a listed name"
            raise given.refusal("allowed_hub_policies", f"as a path or {listed}", text)
        return text

    def _require_harmless(self, folder: Path, given: Given, adapted: tuple[Path, ...]) -> None:
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
                self._require_harmless_json(path, given, (*adapted, folder))

    def _require_harmless_json(self, path: Path, given: Given, folders: tuple[Path, ...]) -> None:
        name = quoted(str(path.relative_to(folders[-1])))
        try:
            content = parse_json_object(path.read_bytes(), source=name)
        except (OSError, IntegrityError) as error:
            expected = f"expected --{given.key} as a folder with valid JSON files"
            raise denied("weights_file", f"{expected}, got {quoted(str(error))}") from error
        main = path == folders[-1] / "config.json"
        if main and content.get("type", self.types[0]) not in self.types:
            raise denied(
                "policy_type",
                f"expected --{given.key} as a policy of {', '.join(self.types)}, got "
                f"{quoted(content.get('type'))} in {name}",
            )
        kept = _PAST if main else frozenset[str]()
        for entry, value in _entries({k: v for k, v in content.items() if k not in kept}):
            if entry == "base_model_name_or_path" and isinstance(value, str):
                self._checked(value, given, folders)
                continue
            if isinstance(value, str) and path.name not in _NO_SOURCES:
                self._require_allowed_source(entry, value, name, given, folders)
            if entry == "registry_name":
                if value in self.steps:
                    continue
            elif entry == "parent_library" and str(value).startswith("lerobot."):
                continue  # adapters are saved with the class of their base
            elif entry not in _CODE_KEYS or value in (None, False) or isinstance(value, dict):
                continue
            raise denied(
                "weights_entry",
                f"expected --{given.key} as a folder that names no code but LeRobot's own steps, "
                f"got {entry} = {quoted(value)} in {name}",
            )

    def _require_allowed_source(
        self, entry: str, value: str, name: str, given: Given, folders: tuple[Path, ...]
    ) -> None:
        """Raise if ``value`` names a repository, folder or file that the rules do not allow."""
        named = _SOURCE_KEYS.fullmatch(entry) or _SOURCES.fullmatch(value)
        if not value or value in self.companions or not named:
            return
        try:
            if not (_HUB_ID.fullmatch(value) or Path(value).is_absolute()):
                raise given.refusal("relative_path", "without a relative path, or bare name", value)
            self._checked(value, given, folders)
        except ConstitutionError as error:
            raise denied(
                "weights_source",
                f"expected --{given.key} as a folder that names no repositories but those of "
                f"allowed_hub_policies, and no folders but those that the run may read, got {entry}"
                f" = {quoted(value)} in {name}; list it, or remove the entry",
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
