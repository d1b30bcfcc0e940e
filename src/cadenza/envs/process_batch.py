"""Any task as a batch: its scalar environments in processes of their own.

Copies:    copy i plays what the scalar environment plays after ``reset(seed=seed_i + e * stride)``,
           to the byte, however many processes there are; identities and automatic resets are
           those of `cadenza.envs.vector_base`.
Processes: workers come from Python's fork server; each steps an equal share of the copies. A
           script that makes a batch must guard its body with ``if __name__ == "__main__"``, or pass
           ``workers=0``, which steps all copies in this process. A daemonic process, as a worker
           of `cadenza.benchmark.executor` is, may have no children and always does that.
Orphans:   a worker ends with its pipe: when the batch is closed or forgotten, and when its parent
           is gone, however that ended.
Snapshots: copies of the environments themselves, in memory alone; workers send theirs through
           their pipes. An environment that cannot be copied refuses.
"""

import copy
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.errors import (
    CadenzaError,
    InputError,
    NotReadyError,
    OnlineDataWorkerError,
    refuse,
)
from cadenza.core.fork_server import preload, set_environment
from cadenza.envs.inputs import ChamberEnvCompatibilityError, missing_uid_message
from cadenza.envs.vector_base import EpisodeBatch, Snapshot

#: Returns one scalar environment with `reset`, `step`, `agent_uids` and spaces by robot; workers
#: get it pickled, so it is a function of a module or a `functools.partial` of one.
Maker: TypeAlias = Callable[[], Any]
#: Every robot's `state` in some copies, (R, D) each, in the order of ``agent_uids``.
States: TypeAlias = list[NDArray[Any]]

#: Seconds a worker gets to leave by itself before it is killed.
_GRACE_S: Final = 5.0


class _Outcome(NamedTuple):
    """What a step made of some copies: `States`, then (R,) each, and an info per copy."""

    states: States
    rewards: FloatArray
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: list[dict[str, Any]]


class _Copies:
    """The scalar environments of one process."""

    def __init__(self, make: Maker, count: int) -> None:
        self._make, self._count = make, count
        self._envs: list[Any] = []

    def open(self) -> None:
        """Make the environments."""
        self._envs += [self._make() for _ in range(self._count)]

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> States:
        """Begin the episodes ``seeds`` in the copies ``places``."""
        return self._states(
            [self._envs[k].reset(seed=seed)[0] for k, seed in zip(places, seeds, strict=True)]
        )

    def step(self, actions: Mapping[str, NDArray[Any]]) -> _Outcome:
        """Advance every copy; ``actions`` have a row for each."""
        made = [
            env.step({uid: rows[k] for uid, rows in actions.items()})
            for k, env in enumerate(self._envs)
        ]
        seen, rewards, terminated, truncated, infos = zip(*made, strict=True)
        return _Outcome(
            self._states(seen),
            np.array(rewards, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            [dict(info) for info in infos],
        )

    def kept(self, places: Sequence[int]) -> list[Any]:
        """Return environments like those in ``places``."""
        return [copy.deepcopy(self._envs[k]) for k in places]

    def put(self, places: Sequence[int], kept: Sequence[Any]) -> None:
        """Let ``places`` go on as environments that `kept` returned; those stay as they are."""
        for place, one in zip(places, kept, strict=True):
            self._envs[place] = copy.deepcopy(one)

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _states(self, seen: Sequence[Mapping[str, Any]]) -> States:
        uids = self._envs[0].agent_uids
        return [np.stack([one["agent"][uid]["state"] for one in seen]) for uid in uids]


class ProcessBatch(EpisodeBatch):
    """N copies of any scalar task, in this process or in several; see the module.

    Observation, actions and reward are those of the scalar environment with a row per copy. What
    its info tells becomes arrays as in Gymnasium's vector environments: 0 where a copy told
    nothing, which the mask ``_name`` says.

    Args:
        make: Makes one scalar environment.
        num_envs: Copies N, >= 1.
        workers: Processes; 0 steps all copies in this one. None takes the cores, at most N, and
            this process where that is one.

    Raises:
        InputError: An argument is out of range.
        OnlineDataWorkerError: A worker does not start.
    """

    def __init__(self, make: Maker, num_envs: int, *, workers: int | None = None) -> None:
        one = make()
        self.owner: str = f"ProcessBatch({type(one).__name__})"
        self._contracts = {uid: contract_at(one, uid) for uid in one.agent_uids}
        self._open(num_envs, one.observation_space, one.action_space)
        self.agent_uids: tuple[str, ...] = tuple(one.agent_uids)
        self.ego_uid: str = one.ego_uid
        self.partner_uid: str = one.partner_uid
        self.control_timestep: float = one.control_timestep
        self.root_seed: int = one.root_seed
        one.close()
        if workers is None:
            workers = min(len(os.sched_getaffinity(0)), self.num_envs)
            workers = 0 if workers == 1 else workers  # which would only talk, not help
        workers = min(whole_number(f"{self.owner}.workers", workers, least=0), self.num_envs)
        robots: Any = one.observation_space["agent"]
        self._states: States = [
            np.zeros((self.num_envs, *robots[uid]["state"].shape), robots[uid]["state"].dtype)
            for uid in self.agent_uids
        ]
        if workers == 0 or multiprocessing.current_process().daemon:
            self._group: _Copies | _Workers = _Copies(make, self.num_envs)
        else:
            self._group = _Workers(make, self.num_envs, workers, self.owner)
        self._group.open()

    @property
    def task_contract(self) -> Mapping[str, TaskContract]:
        """What the robots' numbers mean, of those of whom the environment says it."""
        return {uid: one for uid, one in self._contracts.items() if one is not None}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Advance every copy by one step; see `PlanarVectorEnv.step`.

        ``actions`` have a row per copy for every robot.

        Raises:
            NotReadyError: `reset` was never called, or the step before failed.
            InputError: A robot has no actions or not one per copy, or as the scalar environment.
            OnlineDataWorkerError: A worker was lost.
        """
        self._require_episodes("step")
        acted = {uid: self._rows_of(actions, uid) for uid in self.agent_uids}
        self._ready = False  # copies that moved beside one that failed are in no common step
        told = self._group.step(acted)
        self._ready = True
        self._states = told.states
        info: dict[str, Any] = {}
        for row, own in enumerate(told.infos):
            info = self._add_info(info, own, row)
        finished = told.terminated | told.truncated
        if finished.any():
            self._restart(finished, self._observe(), info)
        return self._observe(), told.rewards, told.terminated, told.truncated, info

    def reset_rows(
        self, rows: Sequence[int], seeds: Sequence[int], roots: Sequence[int]
    ) -> dict[str, Any]:
        """Refuse: scalar environments have one root seed, and do not play on after an episode."""
        del rows, seeds, roots
        raise NotReadyError(
            f"{self.owner}.reset_rows: expected a task that computes with arrays; play one by one."
        )

    def snapshot(self, rows: Sequence[int]) -> Snapshot:
        """Return the copies ``rows`` as they are; see `EpisodeBatch.snapshot`.

        Raises:
            NotReadyError: `reset` was never called.
            ChamberEnvCompatibilityError: The environment cannot be copied.
        """
        kept, copies = super().snapshot(rows), np.empty(len(rows), dtype=object)
        try:
            for place, one in enumerate(self._group.kept(list(rows))):
                copies[place] = one
        except (TypeError, AttributeError) as error:
            raise ChamberEnvCompatibilityError(
                f"{self.owner}.snapshot: expected an environment that can be copied, got one that "
                f"cannot ({error})."
            ) from error
        return {**kept, "copies": copies}

    def restore(self, rows: Sequence[int], snapshot: Snapshot) -> dict[str, Any]:
        """Put the copies ``rows`` where `snapshot` was taken; see `EpisodeBatch.restore`."""
        seen = super().restore(rows, snapshot)
        self._group.put(list(rows), list(snapshot["copies"]))
        return seen

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment and end the workers."""
        del kwargs
        self._ready = False
        self._group.close()

    def _rows_of(self, actions: Mapping[str, Any], uid: str) -> NDArray[Any]:
        if uid not in actions:
            raise InputError(missing_uid_message(self.owner, actions, uid))
        rows = np.asarray(actions[uid])
        if rows.shape[:1] != (self.num_envs,):
            refuse(
                InputError,
                f"{self.owner}: actions of {uid!r}",
                expected=f"one row for each of {self.num_envs} copies",
                got=f"shape {rows.shape}",
            )
        return rows

    def _memory(self) -> dict[str, Any]:
        states = zip(self.agent_uids, self._states, strict=True)
        return {**super()._memory(), **{f"state of {uid}": rows for uid, rows in states}}

    def _start(self, rows: NDArray[np.int64]) -> None:
        begun = self._group.reset(rows.tolist(), self._episodes_of(rows).tolist())
        for states, new in zip(self._states, begun, strict=True):
            states[rows] = new

    def _observe(self) -> dict[str, Any]:
        states = zip(self.agent_uids, self._states, strict=True)
        return {"agent": {uid: {"state": rows.copy()} for uid, rows in states}}


class _Workers:
    """The copies in several processes, in blocks of rows that follow one another."""

    def __init__(self, make: Maker, count: int, workers: int, owner: str) -> None:
        self._owner = owner
        self._bounds = [count * k // workers for k in range(workers + 1)]
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._end = weakref.finalize(self, _stop, self._pipes, self._processes)
        context = multiprocessing.get_context("forkserver")
        preload(__name__, getattr(make, "func", make).__module__)
        for block in self._blocks():
            ours, theirs = context.Pipe()
            given = (theirs, make, block.stop - block.start, dict(os.environ))
            process = context.Process(target=_work, args=given, name="cadenza-env", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def open(self) -> None:
        """See `_Copies`."""
        for worker in range(len(self._pipes)):
            self._send(worker, "open")
        self._answers(range(len(self._pipes)))

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> States:
        """See `_Copies`."""
        order, parts = self._ask("reset", rows, seeds)
        return [np.concatenate(states)[order] for states in zip(*parts, strict=True)]

    def step(self, actions: Mapping[str, NDArray[Any]]) -> _Outcome:
        """See `_Copies`."""
        for worker, block in enumerate(self._blocks()):
            self._send(worker, "step", {uid: rows[block] for uid, rows in actions.items()})
        told: list[_Outcome] = self._answers(range(len(self._pipes)))
        states, rewards, terminated, truncated, infos = zip(*told, strict=True)
        return _Outcome(
            [np.concatenate(rows) for rows in zip(*states, strict=True)],
            np.concatenate(rewards),
            np.concatenate(terminated),
            np.concatenate(truncated),
            [info for part in infos for info in part],
        )

    def kept(self, rows: Sequence[int]) -> list[Any]:
        """See `_Copies`."""
        order, parts = self._ask("kept", rows)
        kept = [one for part in parts for one in part]
        return [kept[k] for k in order]

    def put(self, rows: Sequence[int], kept: Sequence[Any]) -> None:
        """See `_Copies`."""
        self._ask("put", rows, kept)

    def close(self) -> None:
        """End every worker."""
        self._end()

    def _blocks(self) -> list[slice]:
        ends = zip(self._bounds[:-1], self._bounds[1:], strict=True)
        return [slice(first, end) for first, end in ends]

    def _ask(
        self, name: str, rows: Sequence[int], *columns: Sequence[Any]
    ) -> tuple[list[int], list[Any]]:
        """Ask those who step ``rows``; return their answers, and how to sort those as ``rows``."""
        owners = np.searchsorted(self._bounds, rows, side="right") - 1
        shares = {int(k): np.flatnonzero(owners == k).tolist() for k in np.unique(owners)}
        for worker, share in shares.items():
            places = [rows[k] - self._bounds[worker] for k in share]
            self._send(worker, name, places, *([column[k] for k in share] for column in columns))
        order = np.argsort([k for share in shares.values() for k in share])
        return order.tolist(), self._answers(shares)

    def _send(self, worker: int, name: str, *arguments: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # told when its answer is missed
            self._pipes[worker].send((name, arguments))

    def _answers(self, workers: Iterable[int]) -> list[Any]:
        """Return what the workers answer; raise the first error once all have answered."""
        answers: list[Any] = []
        for worker in workers:
            try:
                answers.append(self._pipes[worker].recv())
            except (EOFError, ConnectionResetError) as error:
                process = self._processes[worker]
                process.join(_GRACE_S)
                raise OnlineDataWorkerError(
                    f"{self._owner}: expected {len(self._processes)} workers, lost one (exit code "
                    f"{process.exitcode}); a script must guard its body with "
                    "if __name__ == '__main__', or pass workers=0."
                ) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def _stop(pipes: list[Connection], processes: list[BaseProcess]) -> None:
    """End workers: politely first, then for certain."""
    for pipe in pipes:
        pipe.close()  # a worker reads the end of its pipe and leaves
    for process in processes:
        process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _work(connection: Connection, make: Maker, count: int, variables: Mapping[str, str]) -> None:
    """Body of a worker: do what the batch asks."""
    set_environment(variables)
    # Ctrl-C reaches the whole process group; the parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    copies = _Copies(make, count)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent needs no more
        while True:
            name, arguments = connection.recv()
            try:
                answer = ForkingPickler.dumps(getattr(copies, name)(*arguments))
            except Exception as error:  # noqa: BLE001 # the batch raises it
                answer = ForkingPickler.dumps(_portable(error))
            connection.send_bytes(answer)
    copies.close()


def _portable(error: Exception) -> Exception:
    """Return the error, or one that says the same where pickling fails or may do anything."""
    if isinstance(error, CadenzaError) or type(error).__module__ == "builtins":
        with suppress(Exception):  # whatever its parts raise
            ForkingPickler.dumps(error)
            return error
    kind = TypeError if isinstance(error, PicklingError) else OnlineDataWorkerError
    return kind(f"{type(error).__name__}: {error}")
