"""Writing in one background thread, at most one job ahead, with errors that come back."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import torch


class BackgroundWriter:
    """Runs one job at a time in a thread; `submit` and `wait` raise what the last job raised."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._job: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Wait for the last job, then start this one."""
        self.wait()
        self._job = self._executor.submit(job)

    def wait(self) -> None:
        """Wait for the last job and raise its error, if any."""
        job, self._job = self._job, None
        if job is not None:
            job.result()


def cpu_snapshot(value: Any) -> Any:
    """Return a copy of a nested state that later training steps cannot change.

    Tensors are copied to the CPU; mappings become dicts, and tuples and lists stay what they are.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {key: cpu_snapshot(item) for key, item in entries.items()}
    if isinstance(value, list):
        return [cpu_snapshot(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple([cpu_snapshot(item) for item in cast("tuple[Any, ...]", value)])
    return value
