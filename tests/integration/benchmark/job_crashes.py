"""What a job leaves on disk if it dies at a durable step, as if the power had gone.

A durable step is a call of fsync, rename or replace; death comes before it. What lies on disk at
that moment is all that a dead process leaves, so copies taken there stand for processes that died;
`dies_after` makes a process really die, to show that they do.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

#: Exit status of a child that died where it was told to.
DIED = 77
_STEPS = ("fsync", "rename", "replace")


@contextmanager
def deaths(root: Path, into: Path) -> Iterator[list[Path]]:
    """Copy ``root`` before every durable step of the body.

    Yields:
        The copies below ``into``, by number of the step; filled while the body runs.
    """
    copies: list[Path] = []

    def copy() -> None:
        copies.append(into / str(len(copies)))
        if root.exists():
            shutil.copytree(root, copies[-1])

    with _before_durable_steps(copy):
        yield copies


def dies_after(steps: int, job: Callable[[], object]) -> bool:
    """Run ``job`` in a child that ends without any clean-up at its durable step ``steps``.

    Returns:
        Whether it died there; False if the job ended before.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            left = iter(range(steps))
            with _before_durable_steps(lambda: next(left, None) is None and os._exit(DIED)):
                job()
            status = 0
        finally:
            os._exit(status)
    _, state = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(state)
    assert code in (0, DIED), f"the job failed with {code}"
    return code == DIED


def tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file below ``root`` by name, the empty lock left out."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "job.lock"
    }


@contextmanager
def _before_durable_steps(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` before every durable step of the body."""

    def preceded(real):
        def call(*arguments, **keywords):
            act()
            return real(*arguments, **keywords)

        return call

    with mock.patch.multiple(os, **{name: preceded(getattr(os, name)) for name in _STEPS}):
        yield
