"""A few batches that are filled again and again, so that drawing allocates nothing.

On the processor a batch is drawn straight into the buffer that its user gets. For a CUDA device it
is drawn into page-locked memory and copied on a stream of its own, beside what the device computes.
A buffer comes back into the ring when its user gives it back, and is written again only when the
copies and the computations that read it have finished.
"""

import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from cadenza.core.checks import checked_integer, checked_seconds, require_callable
from cadenza.core.device import resolve_device
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.stream.batches import flat_tensors

if TYPE_CHECKING:
    from tensordict import TensorDict

    Draw = Callable[["TensorDict | None"], TensorDict]


class Mark(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None:
        """Return once the device has passed it."""
        ...


class Copies(Protocol):
    """Copies that run beside the processor and beside the work of a device."""

    def host_buffer(self, batch: "TensorDict") -> "TensorDict":
        """Return a copy of ``batch`` that copies can read by themselves."""
        ...

    def device_buffer(self, batch: "TensorDict") -> "TensorDict":
        """Return a batch like ``batch`` on the device."""
        ...

    def start(self, source: "TensorDict", target: "TensorDict", after: Mark | None) -> Mark:
        """Begin to copy ``source`` into ``target`` once ``after`` has passed; mark the end."""
        ...

    def show(self, mark: Mark) -> None:
        """Let what the caller starts on the device from now on wait for ``mark``."""
        ...

    def mark(self) -> Mark:
        """Mark the end of what the caller has started on the device so far."""
        ...


class SideStreamCopies:
    """Copies on a CUDA stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def host_buffer(self, batch: "TensorDict") -> "TensorDict":
        """Return a page-locked copy."""
        return batch.pin_memory()

    def device_buffer(self, batch: "TensorDict") -> "TensorDict":
        """Return a copy on the device, ready for the side stream."""
        untyped: Any = batch
        made: TensorDict = untyped.to(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return made

    def start(self, source: "TensorDict", target: "TensorDict", after: Mark | None) -> Mark:
        """Begin to copy on the side stream."""
        values = flat_tensors(source)
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(cast("torch.cuda.Event", after))
            for name, tensor in flat_tensors(target).items():
                tensor.copy_(values[name], non_blocking=True)
            return self._event(self._stream)

    def show(self, mark: Mark) -> None:
        """Let the calling thread's stream wait."""
        torch.cuda.current_stream(self._device).wait_event(cast("torch.cuda.Event", mark))

    def mark(self) -> Mark:
        """Mark the calling thread's stream."""
        return self._event(torch.cuda.current_stream(self._device))

    def _event(self, stream: "torch.cuda.Stream") -> Mark:
        event = torch.cuda.Event()
        event.record(stream)
        return cast("Mark", event)


class _Buffer:
    """One batch of the ring, empty until it is filled, and who has it."""

    def __init__(self, returned: int) -> None:
        self.host: TensorDict | None = None
        self.target: TensorDict | None = None
        self.copied: Mark | None = None
        self.used: Mark | None = None
        self.is_marked = True
        self.lease: object = None
        self.returned = returned


class BatchRing:
    """Batches of one shape in ``depth`` buffers.

    Threads may share it if they may share what it draws from, as they may an engine.
    """

    def __init__(
        self,
        draw: "Draw",
        *,
        depth: int = 3,
        device: str | torch.device = "cpu",
        copies: Copies | None = None,
    ) -> None:
        """Describe the ring of ``depth`` buffers; as many batches can be in use at once.

        Args:
            draw: Draws into the batch it gets and returns it, or a new batch for None; as in
                ``lambda out: engine.sample_batch(32, 64, out=out)``. Always the same shape.
            depth: Buffers, >= 1.
            device: Where users want the batches.
            copies: How they get there; None takes a side stream of the CUDA device.

        Raises:
            ConfigurationError: ``depth`` < 1, or a device of another kind.
            ConfigurationTypeError: ``draw`` or ``depth`` is of another type.
            DeviceUnavailableError: There is no such device on this machine.
        """
        require_callable("BatchRing.draw", draw, "a function of a batch or None")
        self._draw = draw
        self._depth = checked_integer("BatchRing.depth", depth)
        self._copies = _copies_to(device) if copies is None else copies
        self._buffers = [_Buffer(number) for number in range(depth)]
        self._returns = itertools.count(depth)
        self._returned = threading.Condition()

    @contextmanager
    def lease(self, timeout_s: float = 0.0) -> "Generator[TensorDict]":
        """Draw a batch, which is the caller's until the block ends; work started there sees it.

        Raises:
            ConfigurationError: ``timeout_s`` is no time that one can wait.
            NotReadyError: All buffers are in use, and no other thread gave one back within
                ``timeout_s``.
            InputError: ``draw`` did not return the batch that it was given.
        """
        timeout_s = checked_seconds("BatchRing.lease: timeout_s", timeout_s, zero=True)
        lease = object()
        buffer: _Buffer | None = None
        # An interrupt may come between any two calls: the buffer belongs to nobody or to the lease.
        try:
            with self._returned:
                buffer = self._returned.wait_for(self._next_free, timeout_s)
                if buffer is None:
                    raise NotReadyError(
                        f"BatchRing.lease: expected one of {self._depth} buffers to come back "
                        f"within {timeout_s:g} s, got none; end the block of an earlier batch, or "
                        "raise depth."
                    )
                buffer.lease = lease
            yield self._filled(buffer)
        finally:
            if buffer is not None and buffer.lease is lease:
                try:
                    if self._copies is not None:  # after an error, too, the device may still read
                        buffer.used = self._copies.mark()
                        buffer.is_marked = True
                    buffer.returned = next(self._returns)
                finally:
                    buffer.lease = None
                with self._returned:
                    self._returned.notify()

    def __iter__(self) -> "Iterator[TensorDict]":
        """Draw batches, for ever; each is the caller's until it asks for the next."""
        while True:
            with self.lease() as batch:
                yield batch

    def _next_free(self) -> _Buffer | None:
        """Return the buffer that came back first of those that nobody has."""
        free = [buffer for buffer in self._buffers if buffer.lease is None]
        return min(free, key=lambda buffer: buffer.returned, default=None)

    def _filled(self, buffer: _Buffer) -> "TensorDict":
        """Draw into a buffer and return what its user gets."""
        if self._copies is None:
            return self._drawn(buffer)
        if not buffer.is_marked:  # its last lease was interrupted at its end
            buffer.used = self._copies.mark()
        buffer.is_marked = False
        if buffer.copied is not None:
            buffer.copied.synchronize()
        if buffer.host is None or buffer.target is None:
            buffer.host = self._copies.host_buffer(self._draw(None))
            buffer.target = self._copies.device_buffer(buffer.host)
        else:
            self._drawn(buffer)
        buffer.copied = self._copies.start(buffer.host, buffer.target, buffer.used)
        self._copies.show(buffer.copied)
        return buffer.target

    def _drawn(self, buffer: _Buffer) -> "TensorDict":
        """Draw into the buffer on the host, or make it by the first draw."""
        batch = self._draw(buffer.host)
        if buffer.host is not None and batch is not buffer.host:
            raise InputError(
                "BatchRing: expected draw to return the batch that it was given, got another one; "
                "pass it on as out=."
            )
        buffer.host = batch
        return batch


def _copies_to(name: str | torch.device) -> Copies | None:
    """Return how batches get to a device, None where they need not."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"BatchRing.device: expected 'cpu' or a CUDA device, got {name!r}."
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(
            f"BatchRing.device: expected 'cpu' or a CUDA device, got {str(device)!r}; copy the "
            "batches of a ring on the CPU yourself."
        )
    resolved = resolve_device(str(device))
    return None if resolved.type == "cpu" else SideStreamCopies(resolved)
