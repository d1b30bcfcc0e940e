"""Agents: one class per algorithm, with learn, predict, evaluate, save, load and export_onnx.

    agent = cadenza.SAC("Pendulum-v1", seed=0).learn(20_000)
    print(agent.evaluate(episodes=20))  # -145.7 [-164.4, -127.0]
    agent.save("pendulum")
    action = cadenza.SAC.load("pendulum").predict(observation)

`learn` runs the loop of `loop`; a loop of your own takes an agent's steps and updates by hand:

    agent.begin(1_000)
    while agent.steps < agent.target_steps:
        agent.step()
        while agent.due:
            agent.update(agent.batch())

Here is what all agents share; those in Gymnasium environments share `solo`, too, and each algorithm
has a file of its own.

Promise:  equal seeds give equal bits on the CPU, and a saved and loaded agent continues bit for bit
          if its environments replay their running episodes exactly; otherwise one warning says
          what is lost. Loading takes no environment step.
Axes:     N = environments, O = flattened observation, A = action components.
"""

import inspect
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    save_checkpoint,
    stated_metadata,
)
from cadenza.core.checks import checked_integer, checked_optional_integer, is_whole, whole_as_int
from cadenza.core.contracts import TaskContract
from cadenza.core.device import LEARNING_KINDS, resolve_device, single_torch_thread
from cadenza.core.environments import successes
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.core.progress import progress_bar, progress_note
from cadenza.core.provenance import GIT_SHA_UNKNOWN
from cadenza.core.signals import ending_on_signals
from cadenza.learn.agents.judging import Evaluation
from cadenza.learn.agents.log import FigureLog, Log
from cadenza.learn.agents.loop import Keeping, Listener, Loop, listening
from cadenza.learn.agents.presets import preset_settings
from cadenza.learn.callback import accepts_other_names
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.env.making import SavedCompany, SavedWorlds, agreed
from cadenza.learn.env.stepping import VectorStep
from cadenza.learn.loaded_state import changed_settings, complete_state, read_agent, require_version
from cadenza.learn.nn.encoders import Network
from cadenza.learn.nn.portable import (
    POLICY_FACT,
    TRAINED_WITH,
    PortableNetwork,
    policy_path,
    save_policy_file,
)
from cadenza.learn.settings import FrozenModel, settings_of_a_file

#: Layout version of what `Agent.save` writes.
STATE_VERSION: Final = 1
#: Task contracts, by seat, in an agent's header and an ONNX file's metadata.
_CONTRACTS: Final = "contracts"
#: Episodes that the mean return of a training is taken over.
RECENT_EPISODES: Final = 100
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

#: What makes an evaluation the best: its mean return, or its success rate and then its return.
BestBy: TypeAlias = Literal["return", "success_rate"]

P = ParamSpec("P")
AnyEnv = TypeVar("AnyEnv")
AnyAgent = TypeVar("AnyAgent")
AgentConfig = TypeVar("AgentConfig", bound=FrozenModel)


class AgentKeywords(TypedDict, total=False):
    """Keywords that every agent has beside its settings."""

    seed: int
    num_envs: int | None
    device: str


class Agent(LoggingMixin, ABC, Generic[AgentConfig]):
    """An algorithm with its environments, its networks and everything it has learned.

    ``env`` is a Gymnasium id, a function that makes an environment, an environment or a vector
    environment; ``seed`` the root of every random stream; ``num_envs`` how many environments are
    made and stepped together. ``device`` is where networks act and learn: ``"cpu"``, ``"cuda"``,
    ``"cuda:1"``, or ``"auto"`` for the first GPU that works, else the CPU. All else are settings;
    see the class of ``config``.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        samples: Rows of all their batches.
        target_steps: Steps that the training aims at.
        best_return: Mean return of the best evaluation of a training with a folder.
        best_success_rate: Its success rate, if the task tells one.

    Raises:
        ConfigurationError: A setting is unknown or out of range, or the environment's spaces are of
            a kind that the algorithm cannot learn on.
        DeviceUnavailableError: The device is not on this machine.
        InputError: ``device`` names none.
    """

    #: Class of the settings.
    Config: type[AgentConfig]
    #: What the networks begin with; None chooses.
    network: Network | None = None
    #: Name of the log of its training, once it has one.
    log_name: str | None = None
    #: The environments, `Environments` or `TeamWorlds`.
    envs: Any
    #: Device that a file was saved on, until the next training.
    _device_before: str | None = None
    #: Returns of the running episodes so far, (N,).
    _returns: NDArray[np.float64]
    #: Settings in files of earlier versions that never changed anything.
    _gone: ClassVar[frozenset[str]] = frozenset()
    #: Number of environments by default.
    default_envs: ClassVar[int] = 1

    def __init__(
        self,
        env: Any,
        *,
        seed: int = 0,
        num_envs: int | None = None,
        device: str = "cpu",
        **config: Any,
    ) -> None:
        super().__init__()
        self.steps: int = 0
        self.updates: int = 0
        self.samples: int = 0
        self.target_steps: int = 0
        self.best_return: float | None = None
        self.best_success_rate: float | None = None
        #: How the partners of all its trainings are known; None if no environment says.
        self.trained_with: list[str] | None = None
        self.name: str = type(self).__name__
        self.config: AgentConfig = self.Config(**config)
        self.seed: int = checked_integer("seed", seed, least=0)
        checked_optional_integer("num_envs", num_envs)
        self.device: torch.device = resolve_device(str(device), kinds=LEARNING_KINDS)
        #: What makes an evaluation the best of its folder.
        self.best_by: BestBy = "return"
        self._recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._successes: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.envs = self._environments(env, num_envs)
        with self._threads():
            self._build()

    def __init_subclass__(cls) -> None:
        """Let `help` and notebooks show every keyword with its default, for ``**settings``."""
        super().__init_subclass__()
        init: Any = vars(cls).get("__init__")
        if init is None or "Config" not in vars(cls):
            return
        bases = [base for base in reversed(cls.__mro__[1:]) if "__init__" in vars(base)]
        inherited = [inspect.signature(vars(base)["__init__"]).parameters for base in bases]
        known = {name: each for some in inherited for name, each in some.items()}
        types = get_type_hints(cls.Config)
        for name, field in cls.Config.model_fields.items():
            known[name] = inspect.Parameter(
                name, _KEYWORD, default=field.default, annotation=types[name]
            )
        signature = inspect.signature(init)
        own = [each for each in signature.parameters.values() if each.kind not in _VARIADIC]
        (typed,) = get_args(init.__annotations__["settings"])  # of Unpack[...]
        shown = [known[name] for name in typed.__annotations__]
        init.__signature__ = signature.replace(parameters=[*own, *shown])

    @classmethod
    def preset(cls, task: str) -> dict[str, Any]:
        """Return keywords of the constructor that were measured on a task.

        `cadenza configs list` shows them all, with scores and commands.

        Raises:
            ConfigurationError: None were measured.
        """
        return preset_settings(cls.__name__, task)

    def __repr__(self) -> str:
        """Return how to make it anew, all settings that are not the defaults, and its steps."""
        shown = [self.envs.task, f"seed={self.seed}"]
        if self.envs.num_envs != self.default_envs:
            shown.append(f"num_envs={self.envs.num_envs}")
        if self.envs.company:
            shown.append("partners=...")
        if self.device.type != "cpu":
            shown.append(f"device='{self.device}'")
        if self.network is not None:
            own = isinstance(self.network, nn.Module)
            shown.append(f"network={type(self.network).__name__ if own else self.network!r}")
        changed = self.config.model_dump(exclude_defaults=True)
        shown += [f"{name}={getattr(self.config, name)!r}" for name in changed]
        return f"{self.name}({', '.join(shown)})  # {self.steps:,} steps"

    def learn(
        self,
        steps: int,
        *,
        callbacks: Listener | Iterable[Listener] = (),
        folder: str | Path | None = None,
        evaluate_every: int = 10_000,
        evaluation_episodes: int = 10,
        best_by: BestBy | None = None,
        max_episode_steps: int | None = None,
        log: Log | Sequence[Log] = (),
        log_every: int = 1_000,
        progress: bool = True,
    ) -> Self:
        """Train for ``steps`` more environment steps; return the agent.

        On-policy algorithms finish the rollout that ``steps`` would cut short; the next call takes
        as many steps less, so that all calls together count exactly.

        Args:
            steps: Environment steps, those of all environments; >= 1. ``1e6`` will do.
            callbacks: `AgentCallback`s, or callbacks of the engine, e.g. loggers, a `Checkpointer`,
                an exporter, or one alone. Those of the engine are called once per update, so not
                before the warm-up has ended.
            folder: Where the agent is saved at every evaluation and at the end, that by a signal
                included (``last``), and after its best evaluation (``best``); None saves nothing.
                Only the agent that `load` makes from its ``last`` continues an earlier training:
                ``agent.learn(total - agent.steps, folder=...)``.
            evaluate_every: Environment steps between evaluations, with ``folder``; what came after
                the last one is lost, and taken again, when the process is killed.
            evaluation_episodes: Episodes of each.
            best_by: What makes one the best: its mean return, or its success rate and then its
                return. None goes on as before, at first by the return.
            max_episode_steps: Where they are cut, for environments without a time limit.
            log: ``"jsonl"``, ``"tensorboard"``, ``"wandb"`` or several: where figures go, below
                ``folder`` or, without one, ``logs/NAME``. A loaded agent goes on with its log.
            log_every: Environment steps between figures of updates.
            progress: Show a bar, or now and then a line where there is no terminal.

        Raises:
            InputError: ``steps`` is no whole number >= 1, ``folder`` holds another training,
                something is not finite, or the best is to succeed in a task that tells no success.
            MissingExtraError: ``log`` needs a package that is not installed.
            StorageError: The file system refused a save.
        """
        where = f"{self.name}.learn"
        steps = whole_as_int(steps)
        if not is_whole(steps) or steps < 1:
            do = f"write {self.name}(...).learn(20_000)"
            refuse(InputError, where, expected="steps, an int >= 1", got=repr(steps), do=do)
        if best_by not in (None, *get_args(BestBy)):
            expected = f"best_by to be one of {get_args(BestBy)}"
            refuse(InputError, where, expected=expected, got=repr(best_by))
        self._open_worlds()
        given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        keeping = None
        if folder is not None:
            self._require_own(Path(folder))
            counts = (evaluate_every, evaluation_episodes, max_episode_steps)
            keeping = Keeping(self, Path(folder), *counts)
        self.best_by = best_by or self.best_by
        if log:
            logger = FigureLog(self, log, folder, log_every)
            given.insert(0, logger)
            if progress:
                progress_note(f"{self.name}: the log is in {logger.folder}")
        bar = progress_bar(self.name, quiet=not progress)
        with ending_on_signals(), self._threads(), bar as report:
            Loop(self, listening(given), keeping, report).run(steps)
        return self

    def _open_worlds(self) -> None:
        """Make the environments, or say why there are none, before anything begins."""
        _ = self.envs.vector

    def _threads(self) -> AbstractContextManager[None]:
        """Keep torch to one thread: perceptrons are slower on several, and round otherwise."""
        return single_torch_thread()

    def _require_own(self, folder: Path) -> None:
        """Refuse a folder if nothing can be judged for it, or if it is not of this agent."""
        where = f"{self.name}.learn"
        if not self.envs.can_make:
            expected = (
                "no folder, because the agent cannot make a second environment to evaluate in"
            )
            do = "make the agent from an id or a function"
            refuse(InputError, where, expected=expected, got=str(folder), do=do)
        files = [folder / name for name in ("last", "best") if (folder / name).exists()]
        if not files:  # its best is the best of this folder
            self.best_return = self.best_success_rate = None
            return
        first, best = stated_metadata(files[0]), stated_metadata(files[-1])
        mine = {key: getattr(self, key) for key in ("best_return", "best_success_rate")}
        told = {key: first.extra.get(key, value) for key, value in mine.items()}
        found = (first.extra.get("algorithm"), first.seed, told)
        if found != (self.name, self.seed, mine) or first.step > self.steps:
            best_return = told["best_return"] and f"{told['best_return']:.1f}"
            refuse(
                InputError,
                where,
                expected="a folder without another training",
                got=f"{files[0]} ({found[0]}, seed {first.seed}, {first.step} steps, best return "
                f"{best_return})",
                do=f"use {found[0]}.load('{files[0]}', ...) to continue it, or name another folder",
            )
        # A training that was killed between its two saves has yet to meet its best again.
        for key, value in told.items():
            setattr(self, key, best.extra.get(key, value))

    def begin(self, steps: int) -> None:
        """Go on with the episodes that a file left off, and aim at ``steps`` more steps."""
        before, self._device_before = self._device_before, None
        if before is not None and before.partition(":")[0] != self.device.type:
            self._warn(f"it was saved on {before}, and {self.device} rounds differently")
        self._resume_episodes()
        if (met := self.envs.companions) is not None:
            self.trained_with = sorted({*(self.trained_with or ()), *met})
        # What an interrupted training left undone is not made up for.
        self.target_steps = min(self.target_steps, self.steps) + steps

    @property
    @abstractmethod
    def due(self) -> int:
        """Updates that the steps so far call for."""

    def is_halfway(self) -> bool:
        """Return whether further steps are needed to finish what the last ones have begun."""
        return False

    @abstractmethod
    def step(self) -> Any:
        """Take a step in every environment and remember it; return what came of it."""

    def forget(self) -> None:
        """Begin new episodes with the next step, and forget those that have not ended."""

    @abstractmethod
    def batch(self) -> Any:
        """Return what the next update, which is due, learns from."""

    @property
    @abstractmethod
    def batch_rows(self) -> int:
        """Rows of the batch that comes next."""

    @abstractmethod
    def evaluate(
        self,
        episodes: int = 20,
        *,
        env: Any = None,
        num_envs: int | None = None,
        seed: int = 0,
        max_episode_steps: int | None = None,
    ) -> Evaluation:
        """Play greedy episodes that no training sees."""

    def update(self, batch: Any) -> Mapping[str, Any]:
        """Learn from a batch, and log its figures."""
        rows = self.batch_rows
        figures = self._update(batch)
        self.scalar_logs.keep("training", figures)
        self.updates += 1
        self.samples += rows
        return figures

    def take_best(self, result: Evaluation) -> bool:
        """Note a result if it is the best so far; return whether it is.

        Raises:
            InputError: Success is to decide, and the task tells none.
        """
        if self.best_by == "success_rate" and result.success_rate is None:
            expected = "is_success or success in the info of an episode's last step"
            do = "write best_by='return'"
            refuse(InputError, f"{self.name}.learn", expected=expected, got="neither", do=do)

        def rank(rate: float | None, mean: float) -> tuple[float, float]:
            return (0.0 if self.best_by == "return" or rate is None else rate), mean

        new, old = (result.success_rate, result.mean), (self.best_success_rate, self.best_return)
        if old[1] is not None and rank(*new) <= rank(old[0], old[1]):
            return False
        self.best_success_rate, self.best_return = new
        return True

    def _count(self, step: VectorStep, ends: NDArray[np.bool_]) -> None:
        """Count ``step``, and note how the episodes went that ended in rows ``ends``."""
        self.steps += len(step.rewards)
        self._returns += step.rewards
        if ends.any():
            self._recent.extend(self._returns[ends].tolist())
            self.log_scalar("training/mean_return", self.mean_return)
            told = successes(step.info, ends)
            if self._successes or not np.isnan(told).all():
                self._successes.extend(np.nan_to_num(told).tolist())
                self.log_scalar("training/success_rate", float(np.mean(self._successes)))
        self._returns[step.boundaries] = 0.0

    @property
    def progress(self) -> str:
        """What the bar of a training shows."""
        told = [] if self.device.type == "cpu" else [str(self.device)]
        if self._recent:
            told.append(f"return {self.mean_return:.1f}")
        if self.success_rate is not None:
            told.append(f"success {100.0 * self.success_rate:.0f} %")
        return ", ".join(told)

    @property
    def loggables(self) -> list[LoggingMixin]:
        """What loggers of the engine take: the agent, and the losses of its networks."""
        return [self]

    @property
    def mean_return(self) -> float:
        """Mean return of the last training episodes, at most 100; NaN before the first ended."""
        return float(np.mean(self._recent)) if self._recent else math.nan

    @property
    def success_rate(self) -> float | None:
        """Share of the last training episodes, at most 100, that succeeded; None if none tells."""
        return float(np.mean(self._successes)) if self._successes else None

    @abstractmethod
    def networks(self) -> dict[str, PortableNetwork]:
        """Return the policy of every seat as plain data, by seat; "" where there is one only."""

    def export_policy(self, path: str | Path) -> list[Path]:
        """Write the greedy policy as a file that plays without agent and environment.

        A team writes one for every robot, whose name comes before ``.policy.safetensors``, a suffix
        that is added if it is missing. Returns the files.

        Raises:
            ConfigurationError: The network is a module of your own; use `export_onnx`.
            StorageError: The file system refused.
        """
        return _write_policies(self.networks(), Path(path))

    def _policy_facts(self, seat: str = "") -> dict[str, Any]:
        """Return what a policy file says of the task and of where the policy comes from."""
        return {
            "task": {} if self.envs.id is None else {"id": self.envs.id},
            "contract": self.envs.contracts.get(seat),
            "facts": {
                "algorithm": self.name,
                "seed": self.seed,
                "step": self.steps,
                **self._company_facts(),
            },
        }

    def _company_facts(self) -> dict[str, Any]:
        """Return whom it trained with, if that is known."""
        return {} if self.trained_with is None else {TRAINED_WITH: self.trained_with}

    def _onnx_metadata(self) -> dict[str, Any]:
        """Return the same for an ONNX file; contracts as JSON, by seat."""
        told = self._policy_facts()
        return {**told["facts"], "task": told["task"].get("id", ""), **self._contract_facts()}

    def _contract_facts(self) -> dict[str, str]:
        """Return the task contracts as a file holds them; nothing if there are none."""
        found = {seat: each.facts() for seat, each in self.envs.contracts.items()}
        return {_CONTRACTS: json.dumps(found)} if found else {}

    def save(self, path: str | Path, *, memory: bool = True) -> Path:
        """Write everything the future depends on, atomically, with a checksum beside it.

        Beside it stands what `export_policy` writes, unless the network is a module of your own.
        Without ``memory`` the replay memory is left out; an agent that is loaded from there goes on
        with an empty one and new episodes.

        Raises:
            InputError: ``path`` is a folder.
            StorageError: The file system refused; an older file is still there.
        """
        target = Path(path)
        if target.is_dir():
            refuse(InputError, f"{self.name}.save", expected="a file", got=f"the folder {target}")
        policies: dict[str, Any] = {}
        if not isinstance(self.network, nn.Module):
            networks = self.networks()
            _write_policies(networks, target)
            policies = {POLICY_FACT: {seat: each.content_id for seat, each in networks.items()}}
        metadata = CheckpointMetadata(
            run_id=target.name,
            seed=self.seed,
            step=self.steps,
            git_sha=GIT_SHA_UNKNOWN,
            pyproject_hash=GIT_SHA_UNKNOWN,
            extra={
                "algorithm": self.name,
                "version": STATE_VERSION,
                "best_return": self.best_return,
                "best_success_rate": self.best_success_rate,
                "device": str(self.device),
                **policies,
            },
        )
        header = {
            "algorithm": self.name,
            "config": self.config.model_dump_json(),
            "seed": self.seed,
            "env": self.envs.id or "",
            "num_envs": self.envs.num_envs,
            "network": self.network if isinstance(self.network, str) else None,
            "is_custom": isinstance(self.network, nn.Module),
            "spaces": self.envs.spaces,
            "worlds": self.envs.saved(),
            "log": self.log_name,
            "device": str(self.device),
            **self._contract_facts(),
            **self._company_facts(),
            **({"company": self.envs.company} if self.envs.company else {}),
        }
        state = self.state_dict()
        if not memory:
            state["learned"] = self._without_memory(state["learned"])
        return save_checkpoint(
            state_dict={"header": header, "state": state},
            uri=f"{LOCAL_URI_SCHEME}{target.name}",
            metadata=metadata,
            artifacts_root=target.parent,
        )

    @classmethod
    def load(
        cls: Callable[Concatenate[AnyEnv, P], AnyAgent],
        path: str | Path,
        env: AnyEnv | None = None,
        *args: P.args,
        **parts: P.kwargs,
    ) -> AnyAgent:
        """Return the agent that `save` wrote; no environment is stepped or reset.

        It predicts, is evaluated and exported as it is. With the next `learn` it goes on bit for
        bit if its running episodes, done again, come out as before; otherwise new ones begin, with
        a warning that says why.

        Args:
            path: File.
            env: Environments to learn in; None makes those it learned in with the next `learn`, if
                they have an id.
            *args: None; what is not named is refused.
            **parts: Settings that change, ``num_envs`` among them, a ``device`` other than the CPU,
                and what it was made with that no file can hold: a ``network`` of your own, DAgger's
                expert.

        Raises:
            CheckpointError: The file is missing, damaged, no agent's, of another algorithm or
                version, or ``env`` has another task contract.
            ConfigurationError: A setting is unknown, out of range, or built into what was learned.
            DeviceUnavailableError: The ``device`` is not on this machine.
            InputError: ``network`` is needed.
        """
        kind = cast("type[Agent[Any]]", cls)  # whose constructor types the keywords
        return cast("AnyAgent", kind._loaded(Path(path), env, *args, **parts))  # noqa: SLF001 -- own

    @classmethod
    def _loaded(cls, path: Path, env: Any, *args: Any, **parts: Any) -> Self:
        header, state = read_agent(path)
        if (wrote := header["algorithm"]) != cls.__name__:
            expected, got = f"an agent of {cls.__name__}", f"one of {wrote}"
            do = f"write cadenza.{wrote}.load(...)"
            refuse(CheckpointError, str(path), expected=expected, got=got, do=do)
        where, network = f"{cls.__name__}.load", parts.get("network")
        if header["is_custom"] and network is None:
            refuse(InputError, where, expected="network=..., the module it had", got="none")
        worlds, facts = env, json.loads(header.get(_CONTRACTS, "{}"))
        told = {seat: TaskContract.from_facts(each) for seat, each in facts.items()}
        if env is None:
            saved = header.get("worlds")  # None in files of earlier versions
            worlds = SavedWorlds(header["env"], saved, told) if saved else header["env"] or None
        if worlds is None:
            expected = (
                "env=..., because this file of an earlier version does not contain the spaces"
            )
            refuse(InputError, where, expected=expected, got="none")
        is_ready = env is not None and not isinstance(env, str) and not callable(env)
        given = {"num_envs": None if is_ready else int(header["num_envs"]), **parts}
        saved_network = header["network"]
        if saved_network == "" and header["spaces"].startswith("observations of Dict("):
            saved_network = "dict"  # what earlier versions chose, images or not
        if network is None and saved_network:
            given["network"] = saved_network
        if env is None and "company" in header:
            given = {"partners": SavedCompany(json.loads(header["company"])), **given}
        defaults = {name: field.default for name, field in cls.Config.model_fields.items()}
        settings = changed_settings(cls.__name__, header, given, defaults)
        for name in cls._gone - parts.keys():
            settings.pop(name, None)
        with settings_of_a_file():
            agent = cls(worlds, *args, **settings)
        agent.trained_with = header.get(TRAINED_WITH)
        agent.log_name = header.get("log")  # None in files of earlier versions
        agent._device_before = header.get("device", "cpu")
        agent.envs.contracts = agreed(agent.envs.contracts, told, str(path))
        try:
            agent.load_state_dict(state)
        except CheckpointError as error:
            learned, found = header["spaces"], agent.envs.spaces
            if learned == found:
                raise
            raise CheckpointError(
                f"{path}: expected an environment with {learned}, got one with {found}."
            ) from error
        if env is not None and agent._why_not_resumable():
            agent._resume_episodes()
        return agent

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on: tensors and JSON scalars."""
        return {
            **self.logs(),
            "version": STATE_VERSION,
            "counts": [self.steps, self.updates, self.samples, self.target_steps],
            "best": self.best_return,
            "recent": list(self._recent),
            "successes": list(self._successes),
            "best_success": [self.best_success_rate, self.best_by],
            "learned": self._learned_state(),
        }

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        load_network: bool = True,  # noqa: ARG002 -- networks come with all they learned
        load_optimizer: bool = True,  # noqa: ARG002 -- so do optimisers
        load_hparams: bool = True,
    ) -> None:
        """Continue where `state_dict` was taken; of the engine's switches the last leaves logs out.

        Raises:
            CheckpointError: The state is of another version, incomplete or of other sizes.
        """
        require_version(self.name, state_dict, STATE_VERSION)
        with complete_state(self.name, "an agent of these sizes"):
            counts, recent = state_dict["counts"], state_dict["recent"]
            best, learned = state_dict["best"], state_dict["learned"]
            if load_hparams:
                self.load_logs(state_dict)
            self._load_learned_state(learned)
            self.steps, self.updates, self.samples, self.target_steps = map(int, counts)
            self.best_return = best
            self._recent = deque(map(float, recent), maxlen=RECENT_EPISODES)
            # Files of earlier versions tell nothing of success.
            self._successes = deque(state_dict.get("successes", ()), maxlen=RECENT_EPISODES)
            self.best_success_rate, self.best_by = state_dict.get("best_success", (None, "return"))

    @abstractmethod
    def _environments(self, env: Any, count: int | None) -> Any:
        """Return the environments to learn in."""

    @abstractmethod
    def _build(self) -> None:
        """Make networks, learner and memory."""

    @abstractmethod
    def _update(self, batch: Any) -> Mapping[str, Any]:
        """Learn from a batch; return figures by name."""

    def _why_not_resumable(self) -> str:
        """Return why the saved episodes cannot continue, as far as known without a step."""
        return ""

    @abstractmethod
    def _resume_episodes(self) -> None:
        """Continue the running episodes of a file; warn of what cannot continue exactly."""

    def _warn(self, told: str) -> None:
        warnings.warn(
            f"{self.name}: the training continues, but not bit for bit: {told}.",
            UserWarning,
            stacklevel=2,
        )

    def _warn_of_held(self, left: Sequence[str]) -> None:
        if left:
            self._warn(
                f"{', '.join(left)} outlives episodes and could not be put back; give its class "
                "state_dict() and load_state_dict()"
            )

    @abstractmethod
    def _learned_state(self) -> dict[str, Any]:
        """Return networks, optimisers, memory, environments and random streams."""

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        """Return what `_learned_state` returned without its replay memory, if it has one."""
        return learned

    @abstractmethod
    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_learned_state` returned."""


def _write_policies(networks: Mapping[str, PortableNetwork], path: Path) -> list[Path]:
    """Write every seat's policy beside ``path``, or there if it is a policy file's name."""
    return [save_policy_file(each, policy_path(path, seat)) for seat, each in networks.items()]
