"""Reading YAML that people wrote; every failure is one sentence with the place and what to do.

Refused:  text that is not UTF-8, a key that stands twice in one mapping (YAML would keep the last),
          tags that build objects, nesting without end.
Places:   lines and columns count from 1.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.core.shipped_configs import shipped_configs


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What a complaint of the parser means.

    Attributes:
        pattern: Beginning of the complaint.
        got: What is wrong; ``{0}`` is the group of the pattern.
        advice: What to do.
        at_opening: Whether the place where a bracket or quotation mark was opened says more.
    """

    pattern: str
    got: str
    advice: str
    at_opening: bool = False


_TROUBLES: Final = (
    _Trouble(
        "mapping values are not", "a ': ' where none may be", "quote the value, or align the line"
    ),
    _Trouble(r"found character '\\t'", "a tab", "indent with spaces"),
    _Trouble(r"found character '(.)'", "a value that begins with '{0}'", "put it in quotes"),
    _Trouble(
        "found unexpected end of stream", "quotes without an end", "close them", at_opening=True
    ),
    _Trouble(
        r"expected ',' or '([\]}])'", "a bracket without its '{0}'", "close it", at_opening=True
    ),
    _Trouble(
        r"expected the node content, but found '<stream end>'",
        "a bracket without an end",
        "close it",
        at_opening=True,
    ),
    _Trouble(
        "expected <block end>", "a line that fits none above", "align it with those it belongs to"
    ),
    _Trouble("could not find expected ':'", "a line without ': '", "write 'key: value'"),
    _Trouble("found undefined alias '(.*)'", "the alias '*{0}' of nothing", "quote the value"),
    _Trouble("second occurrence", "the name of an earlier anchor", "take another name"),
    _Trouble("expected '<document start>'", "text after the end", "remove it"),
    _Trouble("but found another document", "a second document", "keep one, without '---'"),
    _Trouble("could not determine .* tag '(.*)'", "the tag '{0}'", "remove the tag"),
    _Trouble("found unhashable key", "a list or mapping as a key", "put the key in quotes"),
)
#: How messages call the tags of plain values.
_TAG: Final = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """What a YAML file holds, and where in it.

    Attributes:
        content: Plain values; None for an empty file.
    """

    content: Any
    _root: yaml.Node | None

    def place(self, path: Sequence[str | int], *, of_key: bool = False) -> str:
        """Return ``line L, column C`` of a value, or of the innermost part of its path there is.

        Args:
            path: Keys and indices from the root.
            of_key: Whether to return the place of the last key instead of its value's.
        """
        node, mark = self._root, None
        for number, part in enumerate(path):
            found = _child(node, part)
            if found is None:
                break
            key, node = found
            mark = key.start_mark if of_key and number == len(path) - 1 else node.start_mark
        if mark is None and self._root is not None:
            mark = self._root.start_mark
        return "line 1, column 1" if mark is None else _place(mark)


def read_yaml(path: Path) -> Any:
    """Return what the YAML file ``path`` holds; None for an empty one.

    Raises:
        ConfigurationError: See `read_yaml_document`.
    """
    return read_yaml_document(path).content


def parse_yaml_value(name: str, text: str) -> Any:
    """Return what ``text`` stands for in a YAML file; messages call it ``name``.

    Raises:
        ConfigurationError: It is not YAML.
    """
    try:
        return _parsed(text).content
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}={text}: {_sentence(error, text)}") from error


def read_yaml_document(path: Path) -> YamlDocument:
    """Return what the YAML file ``path`` holds, with the places of its values.

    Raises:
        ConfigurationError: The file is missing, no file, unreadable or not YAML.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path}: expected a YAML file, got a folder; name a file in it.")
    if not path.is_file():
        where = "" if path.is_absolute() else f"looked for it in {path.parent.absolute()}; "
        raise ConfigurationError(
            f"{path}: expected a YAML file, got none"
            f"{did_you_mean(path.stem, (name.rpartition('/')[2] for name in shipped_configs()))}; "
            f"{where}`cadenza configs list` names shipped ones."
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: expected a readable YAML file, got '{error.strerror}'; check its permissions."
        ) from error
    return parse_yaml_document(data, source=str(path))


def parse_yaml_document(data: bytes, *, source: str) -> YamlDocument:
    """Return what the bytes of a YAML file hold; messages call it ``source``.

    Raises:
        ConfigurationError: They are not YAML in UTF-8.
    """
    text = ""
    try:
        text = data.decode("utf-8")
        return _parsed(text)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigurationError(
            f"{source}: line {line}: expected YAML in UTF-8, got "
            f"{error.object[error.start : error.start + 1]!r} at byte {error.start}; save the file "
            "as UTF-8 text."
        ) from error
    except RecursionError as error:
        raise ConfigurationError(
            f"{source}: expected YAML, got brackets nested without end; check the file."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{source}: {_sentence(error, text)}") from error


def has_aliases(data: bytes) -> bool:
    """Return whether YAML repeats a part of itself (``*name``), which a few lines can make huge."""
    events = cast("Any", yaml).parse(data, yaml.SafeLoader)
    try:
        return any(isinstance(event, yaml.AliasEvent) for event in events)
    except yaml.YAMLError:
        return False  # reading it says what is wrong


def _parsed(text: str) -> YamlDocument:
    loader: Any = _Loader(text)  # Any: the stubs tell no types of what follows
    try:
        root = loader.get_single_node()
        return YamlDocument(None if root is None else loader.construct_document(root), root)
    finally:
        loader.dispose()


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return key and value of a mapping's entry, or a list's item twice; None without one."""
    if isinstance(node, yaml.MappingNode):
        entries = [(key, value) for key, value in node.value if key.value == str(part)]
        return entries[-1] if entries else None
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _sentence(error: yaml.YAMLError, text: str) -> str:
    """Return where ``text`` is no YAML, why, and what to do."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        return (
            f"line {line}, column {column}: expected YAML, got the control character "
            f"U+{ord(text[error.position]):04X}; remove it."
        )
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"expected YAML, got an error: {' '.join(str(error).split())}; correct the file."
    mark, problem = error.problem_mark, str(error.problem)
    if isinstance(error, _ValueProblem):
        return f"{_place(mark)}: expected YAML, got {problem}; {error.note}."
    for trouble in _TROUBLES:
        match = re.match(trouble.pattern, problem)
        if match is not None:
            if trouble.at_opening and error.context_mark is not None:
                mark = error.context_mark
            got = trouble.got.format(*match.groups())
            return f"{_place(mark)}: expected YAML, got {got}; {trouble.advice}."
    return f"{_place(mark)}: expected YAML, got an error: {problem}; correct that place."


class _ValueProblem(yaml.constructor.ConstructorError):
    """A value or key that we refuse; ``note`` says what to do."""


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice in one mapping."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value at ``node``."""
        try:
            return cast("Any", super()).construct_object(node, deep=deep)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            # how the constructors of `!!int`, `!!bool` and `!!timestamp` refuse a text
            kind = node.tag.removeprefix(_TAG)
            raise _ValueProblem(
                problem=f"{str(node.value)!r}, which is no {kind}",
                problem_mark=node.start_mark,
                note="correct it, or put it in quotes",
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping at ``node``."""
        seen: dict[Any, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                first = _place(seen[key.value].start_mark)
                raise _ValueProblem(
                    problem=f"the key {key.value!r} again after {first}",
                    problem_mark=key.start_mark,
                    note="remove one of the two",
                )
            seen[key.value] = key
        return super().construct_mapping(node, deep=deep)


#: YAML 1.1 wants 1.0e-3 for 1e-3; YAML 1.2, and people, take both for a number.
cast("Any", _Loader).add_implicit_resolver(
    f"{_TAG}float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("+-0123456789")
)
