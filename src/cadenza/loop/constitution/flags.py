"""From the words of a command to its flags, refusing what could be read in two ways.

Programs differ in how they read odd words: the last of two equal flags wins here, the first there;
`argparse` completes abbreviations; LeRobot imports a package named by any flag that contains a
certain text. So one reading is accepted: ``--key=value`` or ``--key value``, each key once, spelled
as its job declares it.
"""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.loop.errors import RefusedError

#: Characters of an argument that a reason quotes.
_MAX_QUOTED: Final = 80


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to one question: the rule that refuses and why, both None when allowed."""

    allowed: bool
    rule: str | None = None
    reason: str | None = None

    def require(self) -> None:
        """Raise the `ConstitutionError` of a refusal."""
        if not self.allowed:
            raise ConstitutionError(self)


class ConstitutionError(RefusedError):
    """The constitution refuses a command, see `verdict`, or its own file is no constitution."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        """Return rule and reason in one sentence."""
        return f"refused by the rule {self.verdict.rule}: {self.verdict.reason}"


def denied(rule: str, reason: str) -> ConstitutionError:
    """Return the error that refuses by ``rule`` because of ``reason``."""
    return ConstitutionError(Verdict(allowed=False, rule=rule, reason=reason))


def quoted(text: object) -> str:
    """Return ``text`` fit for a one-line message: printable ASCII, escaped, cut."""
    shown = ascii(text)
    return shown if len(shown) <= _MAX_QUOTED else f"{shown[:_MAX_QUOTED]}..."


#: Characters that count as letters or marks and leave nothing to see: those that programs may
#: ignore (Unicode's Default_Ignorable_Code_Point beyond the format characters), and the empty
#: braille pattern.
_UNSEEN: Final = frozenset(
    chr(code)
    for first, last in (
        *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
        *((0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0)),
        (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)


def is_shown(letter: str) -> bool:
    """Return whether ``letter`` is seen for what it is.

    Not so: control, format (invisible, direction-changing), surrogate, private and unknown
    characters, line and paragraph separators, blanks other than the ordinary one, and letters that
    leave nothing to see.
    """
    category = unicodedata.category(letter)
    if category[0] in "CZ":
        return letter == " "
    return letter not in _UNSEEN


#: Words of one command, and bytes of one word: Linux starts no program with a longer one.
MAX_WORDS: Final = 512
MAX_WORD_BYTES: Final = 131_071
#: A flag's name: words joined by dots, underscores or hyphens.
KEY_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
#: Text of a flag that makes LeRobot import a package; it is looked for anywhere in a word.
_PLUGIN_TEXT: Final = "discover_packages_path"
#: Flags that read further flags from a file.
_CONFIG_FILE_KEYS: Final = frozenset({"config_path", "config", "cfg", "config_file"})


def require_plain_words(command: Sequence[object]) -> tuple[str, ...]:
    """Return ``command`` as words that mean the same to every program."""
    if isinstance(command, str | bytes) or not command:
        raise denied(
            "empty_command", f"expected a program and its arguments, got {quoted(command)}"
        )
    if len(command) > MAX_WORDS:
        raise denied("too_long", f"expected at most {MAX_WORDS} words, got {len(command)}")
    words: list[str] = []
    for word in command:
        if not isinstance(word, str):
            raise denied("not_text", f"expected words, got {quoted(word)}")
        if not all(map(is_shown, word)):
            raise denied("control_character", f"expected printable text, got {quoted(word)}")
        if _PLUGIN_TEXT in word:
            raise denied("plugin", f"expected no flag that imports packages, got {quoted(word)}")
        size = len(word.encode())
        if size > MAX_WORD_BYTES:
            raise denied(
                "too_long", f"expected at most {MAX_WORD_BYTES} bytes in a word, got {size}"
            )
        words.append(word)
    return tuple(words)


def read_flags(
    words: Sequence[str],
    known: Collection[str],
    switches: Collection[str],
    given: Collection[str] = (),
) -> dict[str, str | None]:
    """Return the texts of the flags that ``words`` hold by key; None for a switch.

    Args:
        words: Arguments of a program, or those that are added to it.
        known: Flags that it may be given.
        switches: Those of them that take no value.
        given: Flags that the command has already.
    """
    folded = {fold(key): key for key in known}
    seen = {fold(key): key for key in given}
    flags: dict[str, str | None] = {}
    position = 0
    while position < len(words):
        key, text = _split(words[position])
        if fold(key) in seen:
            source = "" if seen[fold(key)] in flags else ", which the loop sets itself"
            raise denied(
                "repeated_flag",
                f"expected --{seen[fold(key)]}{source} once, got it again as "
                f"{quoted(words[position])}",
            )
        seen[fold(key)] = key
        _require_known(key, known, folded)
        position += 1
        if text is None and key not in switches:
            text = _value_after(key, words, position)
            position += 1
        if text is not None:
            require_value(key, text)
        flags[key] = text
    return flags


def fold(key: str) -> str:
    """Return ``key`` without what spelling variants differ in: case and separators."""
    return re.sub(r"[._-]", "", unicodedata.normalize("NFKC", key)).casefold()


def _split(word: str) -> tuple[str, str | None]:
    if word.startswith("@"):
        raise denied("response_file", f"expected no file of arguments, got {quoted(word)}")
    if word == "--":
        raise denied("end_of_flags", "expected flags only, got '--', after which none is read")
    if not word.startswith("-"):
        if not word.isascii() and unicodedata.category(word[0]) == "Pd":
            raise denied("look_alike", f"expected ASCII hyphens, got {quoted(word)}")
        raise denied("positional", f"expected --key=value, got {quoted(word)}")
    if not word.startswith("--"):
        raise denied("short_flag", f"expected --key=value, got the short flag {quoted(word)}")
    key, separator, text = word[2:].partition("=")
    if not key.isascii():
        raise denied("look_alike", f"expected a flag in ASCII, got {quoted(key)}")
    return key, text if separator else None


def _require_known(key: str, known: Collection[str], folded: dict[str, str]) -> None:
    if key in known:
        return
    if key in _CONFIG_FILE_KEYS:
        raise denied("config_path", f"expected no file of settings, got --{key}")
    if fold(key) in folded:
        raise denied("spelling", f"expected --{folded[fold(key)]}, got {quoted(key)}")
    if not KEY_PATTERN.fullmatch(key):
        raise denied("malformed_flag", f"expected a flag's name, got {quoted(key)}")
    longer = sorted(name for name in known if name.startswith(key))
    if longer:
        raise denied("abbreviation", f"expected a whole name such as --{longer[0]}, got --{key}")
    raise denied(
        "unknown_flag",
        f"expected a flag that the program is known to take, got --{key}; a key can be added under "
        "extra_keys",
    )


def _value_after(key: str, words: Sequence[str], position: int) -> str:
    if position >= len(words):
        raise denied("no_value", f"expected a value after --{key}, got the end of the command")
    if words[position].startswith("--"):
        raise denied("no_value", f"expected a value after --{key}, got {quoted(words[position])}")
    return words[position]


def require_value(key: str, text: str) -> None:
    """Refuse a flag's text that a program could read as something else."""
    if not text.strip():
        raise denied("empty_value", f"expected a value for --{key}, got {quoted(text)}")
    if text != text.strip():
        raise denied("blank_value", f"expected --{key} without outer blanks, got {quoted(text)}")
    if text.startswith("-"):
        raise denied(
            "hyphen_value", f"expected a value for --{key} without leading '-', got {quoted(text)}"
        )
    if text.startswith("@"):
        raise denied("response_file", f"expected a value for --{key}, got the file {quoted(text)}")
