"""Which letters of a command are seen for what they are."""

import unicodedata
from typing import Final

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
