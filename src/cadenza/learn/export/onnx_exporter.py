"""Policies as ONNX files, written while training goes on.

The training thread owns the policy, so only it exports. Other threads queue a request with
`OnnxExporter.export_threadsafe` and wait; the training thread serves the queue after every batch
and while a memory warms up. A request ends in a file or in an exception, never in silence.

File:    inputs in the proxy's order, then ``epsilon`` if asked for; one output per output name;
         the row axis is dynamic and called ``N``. Before a file appears under its name, ONNX
         Runtime has computed it on random inputs and agreed with the policy.
"""

import copy
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

import torch

from cadenza.core.errors import CadenzaError, ConfigurationError, NotReadyError, refuse
from cadenza.core.spaces import BoxSpace, MDPSpace
from cadenza.core.timing import BlockTimers
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.export import onnx_graph
from cadenza.learn.export.crud_storage import CRUDStorage, StorageItem, StorageItemHandle
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.proxies import AgentProxy

#: Name of the noise input.
EPSILON: Final = "epsilon"
#: How long `OnnxExporter.export_threadsafe` waits by default, s: longer than any one batch takes.
WAIT_S: Final = 300.0
_MS_PER_S: Final = 1e3
_NAME: Final = "cadenza.learn.export.OnnxExporter"
#: Facts about one export by name; values become text.
Metadata = Mapping[str, Any]


class ExportTimeoutError(CadenzaError, TimeoutError):
    """The training thread did not serve a request in time."""


class QueuedExport:
    """One request for an export and the place where its outcome appears."""

    def __init__(self, metadata: Metadata | None = None) -> None:
        self.metadata: dict[str, str] = {k: str(value) for k, value in (metadata or {}).items()}
        self._outcome: Future[StorageItem[Any]] = Future()

    def process(self, storage: "OnnxExporter") -> None:
        """Let ``storage`` export and wake whoever waits, with the file or the exception.

        A request that nobody waits for any more is skipped.
        """
        if self._outcome.set_running_or_notify_cancel():
            try:
                self._outcome.set_result(storage.write(self.metadata))
            except BaseException as error:
                self._outcome.set_exception(error)
                if not isinstance(error, Exception):  # an interrupt goes on to the caller, too
                    raise

    def reject(self, error: Exception) -> None:
        """Wake whoever waits with ``error``."""
        if self._outcome.set_running_or_notify_cancel():
            self._outcome.set_exception(error)

    def block_until_complete(self, timeout_s: float | None = None) -> StorageItem[Any]:
        """Wait for the outcome, the exported file; None waits as long as it takes.

        Raises:
            ExportTimeoutError: No outcome in time; the request is withdrawn unless it is running.
            Exception: Whatever made the export fail.
        """
        if not wait([self._outcome], timeout_s).done:
            self._outcome.cancel()
            expected = f"the training thread to serve the request within {timeout_s} s"
            advice = "check that training runs with the exporter among its callbacks"
            refuse(ExportTimeoutError, "ONNX export", expected=expected, got="nothing", do=advice)
        return self._outcome.result()


class OnnxExporter(LoggingMixin, Callback):
    """Exports a policy at fixed intervals and whenever asked.

    Args:
        requires_epsilon: The policy takes noise of the action's shape as its last input. Without
            it, the file is the policy's deterministic decision.
        device: Where the policy computes; None takes that of its first parameter.
    """

    def __init__(
        self,
        agent_proxy: AgentProxy,
        spaces: MDPSpace,
        requires_epsilon: bool,
        directory: str | os.PathLike[str],
        interval: int | None = None,
        prefix: str = "savedmodel_",
        device: torch.device | None = None,
        *,
        opset: int = onnx_graph.OPSET,
        tolerance: float = onnx_graph.TOLERANCE,
        keep_last: int | None = None,
        seed: int = 0,
    ) -> None:
        onnx_graph.require_onnx()
        super().__init__(cycle=interval)
        self._agent_proxy = agent_proxy
        self._inputs = _input_boxes(agent_proxy, spaces, requires_epsilon)
        self._storage: CRUDStorage[OnnxExporter] = CRUDStorage(
            directory, prefix, "onnx", keep_last=keep_last
        )
        self._device, self._seed = device, seed
        self._opset, self._tolerance = opset, tolerance
        self._metadata: dict[str, str] = {}
        self._version = 0
        self._timers = BlockTimers()
        self._queue: queue.SimpleQueue[QueuedExport] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the metadata and of closing the queue
        self._is_closed = False
        self._owner = threading.get_ident()

    def add_metadata(self, key: str, value: Any) -> None:
        """Store ``value``, as text, in every file from now on."""
        with self._lock:
            self._metadata[key] = str(value)

    def begin_training(self) -> None:
        """Accept requests; the calling thread owns the policy from now on."""
        self._owner = threading.get_ident()
        with self._lock:
            self._is_closed = False

    def end_batch(self) -> None:
        """Serve the requests of other threads."""
        self.process_pending_exports()

    def end_cycle(self) -> None:
        """Export and log how long its parts take: mean (ms) and variance (ms²)."""
        self.export()
        for name, (mean_s, variance_s2) in self._timers.stats().items():
            self.log_scalar(f"onnx_export/{name}_ms", mean_s * _MS_PER_S)
            self.log_scalar(f"onnx_export/{name}_var_ms", variance_s2 * _MS_PER_S**2)

    def end_training(self) -> None:
        """Refuse the requests that wait and those to come."""
        with self._lock:
            self._is_closed = True
        while (request := self._next_request()) is not None:
            request.reject(_closed_error())

    def process_pending_exports(self) -> None:
        """Serve the requests of other threads; only the training thread may call this.

        What makes a request fail reaches the thread that made it, and training goes on.
        """
        self._require_owner("process_pending_exports")
        while (request := self._next_request()) is not None:
            request.process(self)

    def export_threadsafe(
        self, metadata: Metadata | None = None, *, timeout_s: float | None = WAIT_S
    ) -> StorageItem[Any]:
        """Let the training thread export, and wait for it; for every other thread.

        ``metadata`` goes into the file beside the exporter's own.

        Raises:
            NotReadyError: The training thread itself calls, or training has ended.
            ExportTimeoutError: The request was not served in time.
            Exception: Whatever made the export fail.
        """
        if threading.get_ident() == self._owner:
            owner, expected = "OnnxExporter.export_threadsafe", "a call from another thread"
            got = "one from the thread that trains, which would wait for itself"
            refuse(NotReadyError, owner, expected=expected, got=got, do="call export() here")
        request = QueuedExport(metadata)
        with self._lock:
            if self._is_closed:
                raise _closed_error()
            self._queue.put(request)
        return request.block_until_complete(timeout_s)

    def export(self, metadata: Metadata | None = None) -> StorageItem[Any]:
        """Write the policy to a new file; only for the training thread.

        Requests that wait in the queue are served first.

        Raises:
            NotReadyError: Another thread calls.
            OnnxExportError: The policy cannot be traced, or the file does not agree with it.
            StorageError: The file system refused.
        """
        self._require_owner("export")
        request = QueuedExport(metadata)
        self.process_pending_exports()
        request.process(self)
        return request.block_until_complete()

    def write(self, metadata: Mapping[str, str]) -> StorageItem[Any]:
        """Trace, check and store the policy as it is now; `QueuedExport` calls this."""
        scope = self._timers.scope
        with scope("create"):
            with scope("policycopy"):
                policy = copy.deepcopy(self._agent_proxy.policy).eval()
            first = next(policy.parameters(), torch.empty(0))
            signature = onnx_graph.PolicySignature(
                inputs=self._inputs,
                outputs=self._agent_proxy.output_names,
                device=self._device or first.device,
            )
            generator = torch.Generator().manual_seed(self._seed)
            with scope("trace"):
                model = onnx_graph.trace_policy(
                    policy, signature, opset=self._opset, generator=generator
                )
            with self._lock:
                told = {**self._metadata, **metadata}
            onnx_graph.describe(model, self._version, _NAME, told)
            data = model.SerializeToString()
            with scope("parity"):
                error = onnx_graph.check_parity(
                    data, policy, signature, tolerance=self._tolerance, generator=generator
                )
            with scope("save"):
                item = self._storage.create_with_data(data)
        self._version += 1
        self.log_scalar("onnx_export/parity_error", error)
        return item

    def delete(self, handle: StorageItemHandle[Any]) -> bool:
        """Delete a file, see `CRUDStorage.delete`."""
        return self._storage.delete(handle)

    def get(self, handle: StorageItemHandle[Any]) -> StorageItem[Any] | None:
        """Return the file of ``handle``, or None."""
        return self._storage.get(handle)

    def items(self) -> Sequence[StorageItem[Any]]:
        """Return all files, oldest first."""
        return self._storage.items()

    def latest(self) -> StorageItem[Any] | None:
        """Return the newest file, or None."""
        return self._storage.latest()

    def state_dict(self) -> dict[str, Any]:
        """Return logs and the number of the next export."""
        return {**super().state_dict(), "version": self._version}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts("OnnxExporter", state, ("version",))
        self._version = int(state["version"])

    def _next_request(self) -> QueuedExport | None:
        """Remove and return the oldest request that waits."""
        return None if self._queue.empty() else self._queue.get()

    def _require_owner(self, method: str) -> None:
        if threading.get_ident() != self._owner:
            owner, advice = f"OnnxExporter.{method}", "call export_threadsafe() there"
            expected = "a call from the thread that trains and so owns the policy"
            refuse(NotReadyError, owner, expected=expected, got="another one", do=advice)


def _closed_error() -> NotReadyError:
    return NotReadyError("ONNX export: expected training to run, but it has ended; call export().")


def _input_boxes(
    agent: AgentProxy, spaces: MDPSpace, requires_epsilon: bool
) -> dict[str, BoxSpace]:
    """Return the boxes of the policy's inputs, in order."""
    known = spaces.state.spaces
    unknown = [name for name in agent.input_names if name not in known]
    if unknown:
        expected, advice = f"input names among {sorted(known)}", "correct the proxy's input_keys"
        refuse(ConfigurationError, "OnnxExporter", expected=expected, got=unknown, do=advice)
    boxes = {name: known[name] for name in agent.input_names}
    if requires_epsilon:
        if EPSILON in boxes:
            expected = f"no input called {EPSILON!r} beside the noise"
            refuse(ConfigurationError, "OnnxExporter", expected=expected, got="one")
        boxes[EPSILON] = BoxSpace(torch.float32, spaces.actions.shape)
    return boxes
