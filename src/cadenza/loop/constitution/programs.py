"""What the table knows of a program: its flags, their kinds, and the job that they make.

A program that is not in the table cannot run, nor a flag that is not in its program's entry; the
file of rules chooses among the programs and can add flags.

Adding one:  an entry in `native_programs` or `lerobot_programs`; its type of job in `jobs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cadenza.loop.constitution.jobs import TypedJob
from cadenza.loop.constitution.kinds import Kind, Switch
from cadenza.loop.constitution.verdict import denied


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, or one of its sub-commands.

    Attributes:
        words: The program's name and its sub-commands.
        job: Type of its jobs.
        keys: Flags it takes.
        fields: The job's fields, by the flag that fills each.
        required: Groups of flags; one flag of each group must be given.
        exclusive: Groups of flags of which at most one may be given.
        together: Groups of flags that are given all or not at all.
        implied: A flag, and a group of which one must be given beside it.
        seed_limit: What the seeds of its initial states lie below.
        per_task: Whether it plays its episodes in each task.
        weakening: Beginnings of arguments that switch the guard off, leave tasks of the suite out
            or ignore the seeds; refused unless the rules allow them.
    """

    words: tuple[str, ...]
    job: type[TypedJob]
    keys: Mapping[str, Kind]
    fields: Mapping[str, str]
    required: tuple[frozenset[str], ...]
    exclusive: tuple[frozenset[str], ...] = ()
    together: tuple[frozenset[str], ...] = ()
    implied: tuple[tuple[str, frozenset[str]], ...] = ()
    seed_limit: int = 2**63
    per_task: bool = False
    weakening: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its words, joined by blanks."""
        return " ".join(self.words)

    def switches(self) -> frozenset[str]:
        """Return the flags that take no value."""
        return frozenset(key for key, kind in self.keys.items() if isinstance(kind, Switch))

    def require_groups(self, given: set[str]) -> None:
        """Raise unless the flags ``given`` belong together.

        Raises:
            ConstitutionError: One is missing, or two exclude each other.
        """
        for group in self.together:
            if group & given and not group <= given:
                raise denied(
                    "missing_flag",
                    f"expected all or none of {sorted(group)}, got {sorted(group & given)}",
                )
        for group in self.exclusive:
            if len(group & given) > 1:
                raise denied(
                    "conflicting_flags",
                    f"expected one of {sorted(group)}, got {sorted(group & given)}",
                )
        beside = tuple((group, f"beside --{key}") for key, group in self.implied if key in given)
        always = tuple((group, f"for {self.name}") for group in self.required)
        for group, why in (*always, *beside):
            if not group & given:
                names, got = " or --".join(sorted(group)), "neither" if len(group) > 1 else "none"
                raise denied("missing_flag", f"expected --{names} {why}, got {got}")


def each(*keys: str) -> tuple[frozenset[str], ...]:
    """Return one group per flag: all of ``keys`` are required."""
    return tuple(frozenset({key}) for key in keys)
