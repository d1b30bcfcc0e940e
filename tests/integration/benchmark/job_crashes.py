"""Processes that die at a chosen durable step of a job, as if the power had gone."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

#: Exit status of a child that died where it was told to.
DIED = 77
#: More durable steps than any job here has.
_MANY = 10_000


def dies_after(steps: int, job: Callable[[], object]) -> bool:
    """Run ``job`` in a child that ends without any clean-up at its durable step ``steps``.

    A durable step is a call of fsync, rename or replace; the child dies before making it.

    Returns:
        Whether it died there; False if the job ended before.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _count_down(steps)
            job()
            status = 0
        finally:
            os._exit(status)
    _, state = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(state)
    assert code in (0, DIED), f"the job failed with {code}"
    return code == DIED


def crash_points() -> Iterator[int]:
    """Yield 0, 1, 2, ...; the caller stops at the first job that did not die."""
    yield from range(_MANY)


def _count_down(steps: int) -> None:
    left = [steps]

    def dying(real):
        def call(*arguments, **keywords):
            if left[0] == 0:
                os._exit(DIED)
            left[0] -= 1
            return real(*arguments, **keywords)

        return call

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, dying(getattr(os, name)))


def tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file below ``root`` by name, the empty lock left out."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "job.lock"
    }
