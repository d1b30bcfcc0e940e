"""Collection in a thread of its own, beside the training loop.

For simulators that are slow or wait for something outside. Runs are not reproducible; use
`SimpleGymCollector` where that matters.

Pace:      with I transitions inserted and S rows sampled since the first sample, and a target of r
           rows per transition, inserting waits while r I > S + tolerance, and sampling waits while
           S > r I + tolerance. Both cannot hold at once, so the threads cannot block each other
           (the sample-to-insert limiter of Reverb, arXiv:2102.04736, section 3.4).
Policies:  the trainer publishes versioned copies; an actor takes over the newest between two steps,
           so nobody ever acts with half-updated weights.
"""

import copy
import gc
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from cadenza.core.checks import checked_integer, require_positive
from cadenza.core.errors import CadenzaError, ConfigurationError, refuse
from cadenza.learn.callback import Callback
from cadenza.learn.collectors.sync import EPISODE_REWARD, GymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.proxies import AgentProxy, MemoryProxy, RebindableAgent


class SampleInsertRatio:
    """Makes the side that runs ahead wait for the other.

    ``inserted`` counts transitions, ``sampled`` rows. Inserts before the first sample are free:
    they fill the memory.
    """

    def __init__(self, samples_per_insert: float, *, tolerance: float = 0.0) -> None:
        """Set the sampled rows per inserted transition, > 0.

        Either side may be ``tolerance`` >= 0 rows ahead, on top of one call's worth.
        """
        if not samples_per_insert > 0.0 or not tolerance >= 0.0:
            expected = "samples_per_insert > 0 and tolerance >= 0"
            got = f"{samples_per_insert} and {tolerance}"
            refuse(ConfigurationError, "SampleInsertRatio", expected=expected, got=got)
        self._target = samples_per_insert
        self._tolerance = tolerance
        self._changed = threading.Condition()
        self.inserted: int = 0
        self.sampled: int = 0
        self._free: int | None = None
        self._is_closed = False

    def insert(self, count: int) -> None:
        """Count ``count`` inserted transitions."""
        with self._changed:
            self.inserted += count
            self._changed.notify_all()

    def sample(self, count: int) -> None:
        """Count ``count`` sampled rows."""
        with self._changed:
            if self._free is None:
                self._free = self.inserted
            self.sampled += count
            self._changed.notify_all()

    def wait_to_insert(self, timeout_s: float | None = None) -> bool:
        """Wait until inserting is due; return whether it is, False after a time-out or `close`."""
        return self._wait(lambda: self._ahead() <= self._tolerance, timeout_s)

    def wait_to_sample(self, timeout_s: float | None = None) -> bool:
        """Wait until sampling is due; return whether it is, False after a time-out or `close`."""
        return self._wait(lambda: -self._ahead() <= self._tolerance, timeout_s)

    def close(self) -> None:
        """Wake all who wait, for good."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def open(self) -> None:
        """Begin again after `close`, with free inserts until the next sample."""
        with self._changed:
            self._is_closed = False
            self.inserted = self.sampled = 0
            self._free = None

    def _ahead(self) -> float:
        """Return by how many rows inserting is ahead of sampling."""
        if self._free is None:
            return 0.0
        return self._target * (self.inserted - self._free) - self.sampled

    def _wait(self, is_due: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or is_due(), timeout_s)
            return not self._is_closed and is_due()


_ADVICE: Final = (
    "The thread needs an agent of its own: add with_policy(policy), which returns an agent that "
    "acts with that network, or use GenericAgentProxy."
)


def copy_of_agent(agent: AgentProxy) -> AgentProxy:
    """Return a deep copy of ``agent`` whose policy is its own.

    Raises:
        ConfigurationError: It cannot be copied; or the copy's ``policy`` is not a module inside
            the copy; or the copy still reaches the policy of ``agent``, for instance from a
            function that was made around it.
    """
    kind = type(agent).__name__
    try:
        copied = copy.deepcopy(agent)
    except (TypeError, RuntimeError, AttributeError, ValueError, copy.Error) as error:
        raise ConfigurationError(
            f"ThreadedGymCollector: expected an agent with with_policy(), or one that can be "
            f"copied, got {kind}: {error}. {_ADVICE}"
        ) from error
    reached = _reachable(copied)
    live = {id(module) for module in agent.policy.modules()}
    memory = _memory(agent.policy.parameters()) | _memory(agent.policy.buffers())
    shares = live & reached.keys() or memory & _memory(reached.values())
    if id(copied.policy) not in reached or shares:
        raise ConfigurationError(
            f"ThreadedGymCollector: expected an agent with with_policy(), or one whose copy has a "
            f"policy of its own inside, got {kind}, whose copy still has parts of the policy that "
            f"is trained, or makes its policy anew. {_ADVICE}"
        )
    return copied


def _memory(things: Iterable[object]) -> set[int]:
    """Return where the memory of each tensor among ``things`` begins, if it has any."""
    tensors = (thing for thing in things if isinstance(thing, torch.Tensor))
    return {tensor.untyped_storage().data_ptr() for tensor in tensors} - {0}


def _reachable(root: object) -> dict[int, object]:
    """Return what ``root`` holds, directly or not, by id; kept alive, so that ids stay unique."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in found:
            found[id(thing)] = thing
            waiting.extend(_held_by(thing))
    return found


def _held_by(thing: object) -> list[object]:
    """Return what an object refers to by itself: not by its class, nor by a module's globals."""
    if isinstance(thing, type | ModuleType):
        return []
    if isinstance(thing, FunctionType):
        named = (thing.__kwdefaults__ or {}).values()
        return [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), *named]
    if isinstance(thing, weakref.ReferenceType):
        return [thing()]
    return gc.get_referents(thing)


class PolicySnapshots:
    """Hands a training policy's parameters and buffers to actors in other threads.

    The state of noise generators is not handed over: each actor draws its own.
    """

    def __init__(self, policy: nn.Module) -> None:
        """Take the first snapshot of ``policy``, which only the publishing thread may change."""
        self._policy = policy
        self._lock = threading.Lock()
        self.version: int = 0
        self._tensors = self._copied()

    def publish(self) -> int:
        """Take a new snapshot and return its version; call it in the thread that trains."""
        tensors = self._copied()
        with self._lock:
            self._tensors = tensors
            self.version += 1
            return self.version

    def actor(self, network: nn.Module | None = None, *, noise_seed: int = 0) -> "SnapshotActor":
        """Return what follows the snapshots, its noise seeded anew.

        That is a copy of the policy, or ``network``, one that shares nothing with it.
        """
        actor = SnapshotActor(self, copy.deepcopy(self._policy) if network is None else network)
        for part in actor.network.modules():
            for value in vars(part).values():
                if isinstance(value, torch.Generator):
                    value.manual_seed(noise_seed)
        actor.refresh()
        return actor

    def newest(self) -> tuple[dict[str, torch.Tensor], int]:
        """Return the tensors of the newest snapshot, which nobody changes, and its version."""
        with self._lock:
            return self._tensors, self.version

    def _copied(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in _tensors(self._policy).items()}


class SnapshotActor:
    """A copy of a policy for one thread."""

    def __init__(self, snapshots: PolicySnapshots, network: nn.Module) -> None:
        self._snapshots = snapshots
        self.network = network
        self.version: int = -1

    def refresh(self) -> int:
        """Take over the newest snapshot, if there is a newer one, and return its version."""
        tensors, version = self._snapshots.newest()
        if version != self.version:
            with torch.no_grad():
                for name, tensor in _tensors(self.network).items():
                    tensor.copy_(tensors[name])
            self.version = version
        return self.version


def _tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


_LOGGER = logging.getLogger(__name__)

#: How long a wait lasts before it looks again whether it should stop.
_POLL_S: Final = 0.2


class CollectorStuckError(CadenzaError, TimeoutError):
    """The collecting thread did not stop in time; an environment step may be hanging."""


class ThreadedGymCollector(GymCollector):
    """Collects in a thread from the end of the warm-up until the end of the training.

    The thread acts with a copy of the policy and takes over a newer version between two steps. An
    error in it stops the training and is raised there. While a checkpoint is written, give
    ``pause_every`` the checkpoint interval: collection rests from the end of each such step until
    the next one begins, so that environments, memory and counters fit together. Arguments not named
    here are those of `GymCollector`.

    Args:
        agent: What acts; a copy of it with a copy of its policy acts in the thread: what
            ``with_policy`` makes, else a deep copy.
        memory: What remembers; only the thread adds to it after the warm-up.
        publish_every: Training steps from one policy version to the next, >= 1.
        ratio: Keeps collection and training in step; None lets each run as fast as it can.
        pause_every: Steps between pauses, the interval of the checkpoints; None never pauses.
        join_timeout_s: How long `end_training` waits for the thread.
        batch_size_key: State key of the number of rows in a batch.

    Raises:
        ConfigurationError: The agent has no ``with_policy`` and cannot be copied together with its
            policy, or a number is out of range.
    """

    ends_first = True

    def __init__(
        self,
        env: DictGymWrapper,
        agent: AgentProxy,
        memory: MemoryProxy,
        render: bool = True,
        warmup_steps: int = 0,
        *,
        publish_every: int = 1,
        ratio: SampleInsertRatio | None = None,
        pause_every: int | None = None,
        join_timeout_s: float = 30.0,
        batch_size_key: str = "batch_size",
        max_episode_steps: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            env,
            agent,
            memory,
            render,
            warmup_steps,
            cycle=pause_every,
            max_episode_steps=max_episode_steps,
            name=name,
        )
        checked_integer("ThreadedGymCollector.publish_every", publish_every)
        require_positive("ThreadedGymCollector.join_timeout_s", join_timeout_s)
        if not isinstance(agent, RebindableAgent):
            copy_of_agent(agent)  # now, so that an error comes before the warm-up
        self._live_agent = agent
        self._publish_every = publish_every
        self._ratio = ratio
        self._join_timeout_s = join_timeout_s
        self._batch_size_key = batch_size_key
        #: The versions of the policy, and which of them acted last in the thread.
        self.snapshots: PolicySnapshots = PolicySnapshots(agent.policy)
        self.acting_version: int = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._stepping = threading.Lock()
        self._may_step = threading.Event()
        self._is_paused = False
        self._ended_returns: deque[float] = deque()
        self._failure: BaseException | None = None
        self._failure_raised = False
        self._state_at_end: dict[str, Any] | None = None

    def shutdown_signal(self) -> bool:
        """Raise what stopped the thread, if anything did; otherwise return False.

        Pass it to a waiter for data, such as `MemoryWarmup`, so that the wait can end.
        """
        if self._failure is not None:
            self._failure_raised = True
            raise self._failure
        return False

    def begin_training(self) -> dict[str, Any]:
        """Warm up in this thread, then start the other one."""
        result = super().begin_training()
        self._stop.clear()
        self._failure, self._failure_raised = None, False
        self._state_at_end = None
        if self._ratio is not None:
            self._ratio.open()
        self._may_step.set()
        self.snapshots.publish()
        self._agent, actor = self._acting_parts()
        self._thread = threading.Thread(
            target=self._collect, args=(actor,), name=self.name, daemon=True
        )
        self._thread.start()
        return result

    def _acting_parts(self) -> tuple[AgentProxy, SnapshotActor]:
        """Return an agent for the thread, and what keeps its policy up to date."""
        if isinstance(self._live_agent, RebindableAgent):
            actor = self.snapshots.actor()
            return self._live_agent.with_policy(actor.network), actor
        agent = copy_of_agent(self._live_agent)
        return agent, self.snapshots.actor(agent.policy)

    @Callback.keys_from_member(batch_size="_batch_size_key")
    def begin_batch(self, batch_size: int) -> dict[str, Any]:
        """Raise what failed in the thread, wait for data if training is ahead, count."""
        self._resume()
        self.shutdown_signal()
        while self._ended_returns:  # here, because loggers read the logs in this thread
            self.log_scalar(EPISODE_REWARD, self._ended_returns.popleft())
        if self._ratio is not None:
            self._ratio.sample(batch_size)
            while not self._stop.is_set() and not self._ratio.wait_to_sample(_POLL_S):
                pass
            self.shutdown_signal()
        return {"inf_step": self.inf_step}

    def end_batch(self, bp_step: int) -> None:
        """Publish the policy if it is time."""
        if bp_step % self._publish_every == 0:
            self.snapshots.publish()

    def end_cycle(self) -> None:
        """Let collection rest until the next batch begins."""
        self._pause()

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two steps of the thread, or that at the end of training."""
        if self._state_at_end is not None:
            return self._state_at_end
        was_paused = self._is_paused
        self._pause()
        try:
            return super().state_dict()
        finally:
            if not was_paused:
                self._resume()

    def end_training(self) -> None:
        """Stop the thread, wait for it, and close the environments.

        Raises:
            CollectorStuckError: The thread did not stop in time; the environments stay open.
        """
        super().end_training()
        self._stop.set()
        if self._ratio is not None:
            self._ratio.close()
        self._resume()
        if self._thread is not None:
            self._thread.join(self._join_timeout_s)
            if self._thread.is_alive():
                expected = f"the collecting thread to stop within {self._join_timeout_s} s"
                got, advice = "none of it", "raise join_timeout_s or look at the environment"
                refuse(CollectorStuckError, self.name, expected=expected, got=got, do=advice)
            self._thread = None
        self._agent = self._live_agent
        self._state_at_end = super().state_dict()  # a last checkpoint may want it
        self._env.close()
        if self._failure is not None and not self._failure_raised:
            self.shutdown_signal()

    def _pause(self) -> None:
        """Wait until the thread is between two steps, and keep it there."""
        if not self._is_paused:
            self._may_step.clear()  # a lock alone would let the thread take it again at once
            self._stepping.acquire()
            self._is_paused = True

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._stepping.release()
            self._may_step.set()

    def _log_episodes(self, mean_return: float) -> None:
        self._ended_returns.append(mean_return)

    def _collect(self, actor: SnapshotActor) -> None:
        """Collect until asked to stop; keep errors for the other thread."""
        try:
            while not self._stop.is_set():
                self._collect_once(actor)
        except BaseException as error:
            error.add_note(f"raised in the thread of {self.name}")
            _LOGGER.exception("%s stops", self.name)
            self._failure = error
            self._stop.set()
            if self._ratio is not None:
                self._ratio.close()

    def _collect_once(self, actor: SnapshotActor) -> None:
        """Do one step with the newest policy, if nothing tells this thread to wait."""
        if self._ratio is not None and not self._ratio.wait_to_insert(_POLL_S):
            return
        if not self._may_step.wait(_POLL_S):
            return
        with self._stepping:
            self.acting_version = actor.refresh()
            count = self.collect_data()
        if self._ratio is not None:
            self._ratio.insert(count)
