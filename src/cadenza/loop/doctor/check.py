"""One thing that was looked at."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from cadenza.core.errors import CadenzaError
from cadenza.loop.contracts.records import Record

#: ``fail`` keeps the runs that were asked about from working, ``warn`` keeps others from it.
Level: TypeAlias = Literal["ok", "warn", "fail"]


class Check(Record):
    """What was found.

    Attributes:
        name: What was looked at.
        level: How it is.
        detail: What was found.
        fix: What to do; None if nothing need be done.
    """

    name: str
    level: Level
    detail: str
    fix: str | None = None


def tried(name: str, fix: str | None, check: Callable[[], Check]) -> Check:
    """Return the outcome of ``check``, or a failure that tells its expected error.

    Args:
        name: What is looked at.
        fix: What to do if it fails; None where the error says it.
        check: Looks at it.
    """
    try:
        return check()
    except (CadenzaError, OSError) as error:
        return Check(name=name, level="fail", detail=" ".join(str(error).split()), fix=fix)
