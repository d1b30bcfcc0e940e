"""What the constitution answers: allowed, or refused by a named rule for a reason."""

from dataclasses import dataclass
from typing import Final

from cadenza.loop.errors import RefusedError

#: Characters of an argument that a reason quotes.
_MAX_QUOTED: Final = 80


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to one question.

    Attributes:
        allowed: Whether it may be done.
        rule: Name of the rule that refuses; None when allowed.
        reason: One sentence for people; None when allowed.
    """

    allowed: bool
    rule: str | None = None
    reason: str | None = None


class ConstitutionError(RefusedError):
    """The constitution refuses a command, or its own file is no constitution.

    Attributes:
        verdict: The refusal, with the rule's name and the reason.
    """

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
