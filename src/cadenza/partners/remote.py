"""Partners whose policy lives in another environment: LeRobot's policies and CrossFormer.

A policy that needs another torch, or JAX, runs as a process of that environment's Python, see
`cadenza.partners.policy_process`; arrays go over its stdin and stdout. Partners of one
policy share the process: it keeps nothing from one plan to the next.

Python:  ``CADENZA_LEROBOT_PYTHON`` and ``CADENZA_CROSSFORMER_PYTHON`` name the interpreters, else
         see `cadenza.core.extras`.
Seeds:   every plan has its own, 0 for a deterministic one, so equal seeds give equal plans.
"""

import atexit
import json
import os
import re
import selectors
import subprocess
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import CadenzaError, ConfigurationError, MissingExtraError
from cadenza.core.extras import foreign_python, python_variable
from cadenza.core.seeding import INTEGER_SEED_BOUND
from cadenza.partners.chunked import (
    CHUNK_OPTIONS,
    Channels,
    ChunkedPolicyPartner,
    channel,
    rgb_image,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.options import NumberOption
from cadenza.partners.policy_process import WireError, pack, unpack
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import ARTIFACTS_SCHEME, local_folder, require_weights_uri

#: The program that the other environment's Python runs.
PROGRAM: Final = Path(__file__).with_name("policy_process.py")
#: Longest wait for a policy to be loaded, s: gigabytes from a slow disk.
LOAD_TIMEOUT_S: Final = 900.0
_TIMEOUT: Final = NumberOption(
    key="timeout_s", default=60.0, low=0.0, high=3600.0, summary="longest wait for a plan, s"
)
_SHARED_OPTIONS: Final[Mapping[str, str]] = {
    "hold": "what is done where no plan speaks: zero (default), or last, for position targets",
    "timeout_s": "longest wait for a plan, s (default 60)",
}
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
#: Longest part of the process's stderr that an error shows, bytes.
_SHOWN: Final = 2000


class PolicyProcessError(CadenzaError, RuntimeError):
    """The process of a policy failed, answered nonsense or took too long; it is ended."""


class PolicyProcess:
    """One running policy.

    Raises:
        PolicyProcessError: It could not be started, or failed while it loaded.
    """

    def __init__(self, command: tuple[str, ...], environ: Mapping[str, str] | None = None) -> None:
        self._name = " ".join(command[-2:])
        self._lock = threading.Lock()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as the process
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- our own program; no shell
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**inherited, **(environ or {})},
            )
        except OSError as error:
            raise PolicyProcessError(
                f"policy process {command[0]}: expected a Python to start, got '{error.strerror}'; "
                "correct the variable that names it."
            ) from error
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._answer(LOAD_TIMEOUT_S)

    @property
    def runs(self) -> bool:
        """Whether the process is alive."""
        return self._process.poll() is None

    def plan(
        self, arrays: Mapping[str, NDArray[Any]], *, instruction: str, seed: int, timeout_s: float
    ) -> NDArray[Any]:
        """Return the policy's actions, (H, A) float32.

        Raises:
            PolicyProcessError: It failed, answered something else or took too long.
        """
        with self._lock:
            try:
                self._requests.write(pack({"instruction": instruction, "seed": seed}, arrays))
                self._requests.flush()
            except OSError as error:
                raise self._failure(f"ended ({error.strerror})") from error
            _, answer = self._answer(timeout_s)
        actions = answer.get("actions")
        if actions is None or actions.ndim != 2:
            raise self._failure(f"answered {sorted(answer)} instead of actions (H, A)")
        return actions

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):  # what was not sent goes nowhere
            self._requests.close()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def _answer(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the next message."""
        deadline = time.monotonic() + timeout_s

        def read(size: int) -> bytes:
            data = bytearray()
            while len(data) < size:
                left = deadline - time.monotonic()
                if left <= 0.0 or not selector.select(left):
                    raise self._failure(f"gave no answer within {timeout_s:g} s")
                part = os.read(self._answers.fileno(), size - len(data))
                if not part:
                    raise self._failure("ended")
                data += part
            return bytes(data)

        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            try:
                fields, arrays = unpack(read)
            except WireError as error:
                raise self._failure(f"wrote a malformed message: {error}") from error
        if "error" in fields:
            raise self._failure(f"failed: {fields['error']}")
        return fields, arrays

    def _failure(self, what: str) -> PolicyProcessError:
        """End the process and return the error that says what it did."""
        self.close()
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _SHOWN))
        said = self._stderr.read().decode("utf-8", errors="replace").strip()
        return PolicyProcessError(
            f"policy process {self._name}: expected actions, but it {what}; its last words: "
            f"{said or 'none'}"
        )


_processes: dict[tuple[int, tuple[str, ...]], PolicyProcess] = {}


def shared_process(
    command: tuple[str, ...], environ: Mapping[str, str] | None = None
) -> PolicyProcess:
    """Return the running process of ``command``, started if need be.

    Raises:
        PolicyProcessError: It could not be started, or failed while it loaded.
    """
    key = (os.getpid(), command)
    if key not in _processes or not _processes[key].runs:
        _processes[key] = PolicyProcess(command, environ)
    return _processes[key]


@atexit.register
def close_processes() -> None:
    """End all processes that this one started."""
    for owner, command in list(_processes):
        process = _processes.pop((owner, command))
        if owner == os.getpid():
            process.close()


class RemotePolicyPartner(ChunkedPolicyPartner):
    """Plays the plans of a policy in another process; subclasses say which.

    The option ``inputs`` names the policy's inputs and the robot's channels they come from,
    ``"observation.state=state,observation.images.front=rgb"``. Channels of shape (H, W, 3) are
    images and go as bytes, others as float32. Where no plan speaks, the option ``hold`` chooses
    zeros, for actions that are speeds or steps, or the last action, for positions.
    """

    #: Name of the policy's loader, `policy_process.POLICIES`, and of its environment.
    loader: ClassVar[str]
    #: Inputs without the option.
    default_inputs: ClassVar[str]
    own_options: ClassVar[tuple[str, ...]] = ("inputs", "instruction", "timeout_s", "hold")

    def __init__(self, spec: PartnerSpec) -> None:
        super().__init__(spec)
        owner, extra = type(self).__name__, spec.extra
        require_weights_uri(owner, spec)
        self._timeout_s = _TIMEOUT.read(owner, extra)
        self._instruction = extra.get("instruction", "")
        self._hold = extra.get("hold", "zero")
        if self._hold not in ("zero", "last"):
            raise ConfigurationError(
                f"{owner}: option 'hold': expected 'zero' or 'last', got {self._hold!r}."
            )
        text = extra.get("inputs", self.default_inputs)
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(name.strip() and source.strip() for name, _, source in pairs):
            raise ConfigurationError(
                f"{owner}: option 'inputs': expected pairs 'input=channel' with commas between, "
                f"got {text!r}."
            )
        self._inputs = {name.strip(): source.strip() for name, _, source in pairs}
        self._command: tuple[str, ...] | None = None

    @abstractmethod
    def loader_options(self) -> dict[str, str]:
        """Return what the loader needs; may look at files."""

    def plan(
        self, channels: Channels, *, rng: np.random.Generator, deterministic: bool
    ) -> NDArray[Any]:
        """Return the policy's actions, (H, A).

        Raises:
            PolicyProcessError: The process failed or took too long.
            MissingExtraError: No interpreter is named.
        """
        seed = 0 if deterministic else int(rng.integers(INTEGER_SEED_BOUND))
        arrays: dict[str, NDArray[Any]] = {}
        for name, source in self._inputs.items():
            values = channel(type(self).__name__, channels, source)
            is_image = values.ndim == 3
            arrays[name] = (
                rgb_image(type(self).__name__, channels, source)
                if is_image
                else values.astype(np.float32)
            )
        return self._process().plan(
            arrays, instruction=self._instruction, seed=seed, timeout_s=self._timeout_s
        )

    def prepare(self) -> None:
        """Start the process if need be.

        Raises:
            PolicyProcessError: It could not be started, or failed while it loaded.
            MissingExtraError: No interpreter is named.
            CheckpointError: The policy's folder is missing or not the one that the spec names.
        """
        self._process()

    def hold_action(self, previous: FloatArray) -> FloatArray:
        """Return zeros or the last action, as the option ``hold`` says, (A,)."""
        return previous if self._hold == "last" else super().hold_action(previous)

    def _process(self) -> PolicyProcess:
        """Return the process that serves the policy."""
        if self._command is None:
            python = foreign_python(self.loader, os.environ)
            if python is None:
                raise MissingExtraError(
                    f"{type(self).__name__}: expected {python_variable(self.loader)} to name "
                    "the Python of an environment with the policy's packages, got none; install "
                    "them there and set it."
                )
            options = json.dumps(self.loader_options(), sort_keys=True)
            # -P: modules that lie beside the program are not those of the environment
            self._command = (str(python), "-P", str(PROGRAM), self.loader, options)
        return shared_process(self._command, {"HF_HUB_OFFLINE": "1"})


@register_partner("lerobot_policy")
class LeRobotPartner(RemotePolicyPartner):
    """Plays a policy that LeRobot trained: ACT, SmolVLA, pi0 and others with one observation.

    ``weights_uri`` is the folder ``pretrained_model`` of a LeRobot training below the artifacts
    folder, or a repository already in the machine's cache, with a commit as ``revision``.
    """

    loader = "lerobot"
    default_inputs = "observation.state=state"
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays a LeRobot policy, which runs in LeRobot's own environment.",
        options={
            **CHUNK_OPTIONS,
            "inputs": "policy inputs and their channels (default observation.state=state)",
            "instruction": "what the robot is to do, for policies that take language",
            "device": "where the policy computes (default cpu)",
            "revision": "commit of the policy's repository, 40 hex digits",
            **_SHARED_OPTIONS,
        },
    )

    def loader_options(self) -> dict[str, str]:
        """Return path, device and revision."""
        uri, extra = str(self.spec.weights_uri), self.spec.extra
        options = {"device": extra.get("device", "cpu")}
        if uri.startswith(ARTIFACTS_SCHEME):
            return {**options, "path": str(local_folder("LeRobotPartner", self.spec))}
        revision = extra.get("revision", "")
        if not _COMMIT.fullmatch(revision):
            raise ConfigurationError(
                f"LeRobotPartner: option 'revision': expected a commit of 40 hex digits, got "
                f"{revision!r}; the repository {uri!r} can change."
            )
        return {**options, "path": uri, "revision": revision}


@register_partner("crossformer_zero_shot")
class CrossFormerPartner(RemotePolicyPartner):
    """Asks CrossFormer, as it is, for a chunk of actions.

    ``weights_uri`` is a folder with the downloaded model below the artifacts folder.
    """

    loader = "crossformer"
    default_inputs = "image_primary=rgb"
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Asks CrossFormer for chunks of actions, in CrossFormer's own environment.",
        options={
            **CHUNK_OPTIONS,
            "inputs": "model inputs and their channels (default image_primary=rgb)",
            "instruction": "what the robot is to do",
            "head": "single_arm (default, 7 numbers), bimanual (14), nav or quadruped",
            "dataset": "dataset whose statistics scale the actions (default bridge_dataset)",
            **_SHARED_OPTIONS,
        },
    )

    def loader_options(self) -> dict[str, str]:
        """Return path, head and dataset."""
        extra = self.spec.extra
        return {
            "path": str(local_folder("CrossFormerPartner", self.spec)),
            "head": extra.get("head", "single_arm"),
            "dataset": extra.get("dataset", "bridge_dataset"),
        }
