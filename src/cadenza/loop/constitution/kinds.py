"""Kinds of values that jobs have: which texts spell one, and which values are accepted.

A kind is a function: it takes a text, or a value as a back end gives it, and returns the value as
it may be used, or refuses it. It reads fewer texts than the programs do: ASCII digits without
signs, underscores or leading zeros; ``true`` or ``false``. What `spelled` writes it reads again as
the same value.

Paths:   count with links and ``..`` resolved. What is written lies below the folder of the run, or
         of the job if that is known, never where the loop keeps its own files; neither in what is
         read nor around it.
Limits:  a link that is made after a command was cleared, and before it runs, is not seen.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
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
#: Largest number, and most items of a list, that a value without a kind of its own may have.
_MAX_NUMBER: Final = 1e12
_MAX_ITEMS: Final = 64
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,19})?(?:[eE][+-]?[0-9]{1,3})?")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: ``name`` or ``owner/name``, as data sets are called everywhere.
DATASET_PATTERN: Final = rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,99}}|{HUB_ID.pattern}"
#: Torch devices.
DEVICE_PATTERN: Final = r"auto|cpu|mps|cuda(?::[0-9]{1,2})?"
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


#: What a flag means; the type is that of the job's field.
Value: TypeAlias = Any
#: From a text or a value to the value that may be used, or a refusal.
Kind: TypeAlias = Callable[[Value, Given], Value]


def spelled(value: Value) -> str:
    """Return the one text of a value: a list as ``[a, b]``, a tuple as ``a,b``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, list):
        return f"[{', '.join(map(spelled, cast('list[Value]', value)))}]"
    if isinstance(value, tuple):
        return ",".join(map(spelled, cast("tuple[Value, ...]", value)))
    return str(value)


def whole(low: int = 0, high: int = MAX_INTEGER) -> Kind:
    """Return the kind of whole numbers in [low, high], written in ASCII digits alone."""

    def read(value: Value, given: Given) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if type(value) is not int:  # True is an int, too
            raise given.refusal("whole_number", "as a whole number of plain digits", value)
        return _in_range(value, given, low, high)

    return read


def number(low: float = 0.0, high: float = _MAX_NUMBER) -> Kind:
    """Return the kind of finite numbers in [low, high]; signs are not accepted."""

    def read(value: Value, given: Given) -> float:
        if isinstance(value, str) and _NUMBER.fullmatch(value) and math.isfinite(float(value)):
            value = float(value)
        if type(value) not in (int, float):
            raise given.refusal("number", "as a finite number", value)
        return float(_in_range(value, given, low, high))

    return read


def _in_range(value: Any, given: Given, low: float, high: float) -> Any:
    if not low <= value <= high:  # written this way round so that NaN fails too
        raise denied("range", f"expected --{given.key} in [{low}, {high}], got {value}")
    return value


def truth(only: bool | None = None, rule: str = "boolean") -> Kind:
    """Return the kind of ``true`` and ``false``, or of the ``only`` one that ``rule`` accepts."""

    def read(value: Value, given: Given) -> bool:
        found = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
        if type(found) is not bool or only not in (None, found):
            accepted = "true or false" if only is None else spelled(only)
            raise given.refusal(rule, f"as {accepted}", spelled(value))
        return found

    return read


def choice(*names: str) -> Kind:
    """Return the kind of one of a few names."""

    def read(value: Value, given: Given) -> str:
        if value not in names:
            raise given.refusal("choice", f"as one of {', '.join(names)}", value)
        return value

    return read


def matching(pattern: re.Pattern[str], summary: str) -> Kind:
    """Return the kind of texts of restricted letters, without two dots in a row."""

    def read(value: Value, given: Given) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value) or ".." in value:
            raise given.refusal("name", f"as {summary}", value)
        return value

    return read


def text(value: Value, given: Given, longest: int = 500) -> str:
    """Take words for people or language-conditioned policies; any printable letters."""
    if len(value) > longest:
        raise denied(
            "long_text",
            f"expected --{given.key} of at most {longest} letters, got {len(value)}",
        )
    return value


def read_path(value: Value, given: Given) -> Path:
    """Take a path within the run's roots, to read: absolute and without links."""
    return confined(given.key, str(value), given.roots, write=False)


def write_path(value: Value, given: Given) -> Path:
    """Take a path within the run's roots, to write."""
    return confined(given.key, str(value), given.roots, write=True)


def several(item: Kind, longest: int = 100_000) -> Kind:
    """Return the kind of several values, ``a,b``: a tuple."""

    def read(value: Value, given: Given) -> tuple[Value, ...]:
        return tuple(
            _items(value.split(",") if isinstance(value, str) else value, item, given, longest)
        )

    return read


def bracketed(item: Kind, longest: int = 100_000) -> Kind:
    """Return the kind of several values, ``[a, b]``, as LeRobot reads numbers: a list."""

    def read(value: Value, given: Given) -> list[Value]:
        if isinstance(value, str):
            if not (value.startswith("[") and value.endswith("]")):
                raise given.refusal("list", "as [a, b, ...]", value)
            value = [part.strip() for part in value[1:-1].split(",")]
        return _items(value, item, given, longest)

    return read


def _items(parts: Sequence[Value], item: Kind, given: Given, longest: int) -> list[Value]:
    """Return the items that stay what they are when they are joined."""
    if not 1 <= len(parts) <= longest:
        raise given.refusal("list", f"with 1 to {longest} items", parts)
    found: list[Value] = []
    for part in parts:
        _require_plain(given, part)
        found.append(item(part, given))
        _require_plain(given, found[-1])
    return found


def _require_plain(given: Given, item: Value) -> None:
    shown = spelled(item)
    if not shown or shown.startswith(("-", "@")) or _LIST_LETTERS & set(shown):
        raise denied("list", f"expected plain items for --{given.key}, got {quoted(shown)}")


def renaming(value: Value, given: Given) -> dict[str, str]:
    """Take a JSON object of names: ``{"old": "new"}``."""
    names: Mapping[str, Value] = value
    if isinstance(value, str):
        try:
            names = parse_json_object(value.encode(), source=given.key)
        except IntegrityError as error:
            raise given.refusal("renaming", "as a JSON object", value) from error
    if len(names) > _MAX_ITEMS:
        raise given.refusal("renaming", f"as an object of at most {_MAX_ITEMS} names", names)
    for name in (*names, *names.values()):
        if not isinstance(name, str):
            raise denied("renaming", f"expected names in --{given.key}, got {quoted(name)}")
        NAME(name, given)
    return dict(names)


def switch(value: Value, given: Given) -> None:
    """Take no value: the flag is there or not there."""
    if value is not None:
        raise given.refusal("switch_value", "without a value", value)


def plain(value: Value, given: Given) -> Value:
    """Take a number, ``true``, ``false``, a plain name, or ``[a, b]`` of these, as it is spelled.

    No path and no repository can be spelled so. YAML's other words for truth and numbers, which
    programs may take for either, are refused.
    """
    if isinstance(value, list) or (isinstance(value, str) and value.startswith("[")):
        return bracketed(plain, _MAX_ITEMS)(value, given)
    shown = spelled(value).lower()
    if type(value) is int or _INTEGER.fullmatch(shown):
        return _in_range(int(value), given, 0, _MAX_NUMBER)
    if type(value) is float or shown[0].isdigit() or shown in ("nan", "inf", "infinity"):
        return number()(value, given)
    if type(value) is bool or shown in ("true", "false", "yes", "no", "on", "off"):
        return TRUTH(value, given)
    return NAME(value, given)


#: Kinds that several programs use.
NAME: Final = matching(_NAME, "a name of ASCII letters, digits and _ . -")
NAMES: Final = several(NAME, longest=1000)
REPOSITORY: Final = matching(re.compile(DATASET_PATTERN), "a dataset's name, owner/name")
DEVICE: Final = matching(re.compile(DEVICE_PATTERN), "auto, cpu, mps, cuda")
COUNT: Final = whole(1)
SIZE: Final = whole(1, 2**16)
TRUTH: Final = truth()


def listed_on_hub(name: str, allowed: Sequence[str]) -> bool:
    """Return whether ``name``, a repository, or all of its owner's stand in ``allowed``."""
    return name in allowed or f"{name.partition('/')[0]}/*" in allowed


def confined(key: str, text: str, roots: Roots | None, *, write: bool) -> Path:
    """Return the path that ``text`` names, absolute and without links.

    A relative path counts from the current folder. A path to write lies strictly below a root; a
    path to read may also be a root itself. Without ``roots`` its form alone is checked.
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
