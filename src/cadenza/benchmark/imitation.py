"""Scripted experts for `cadenza.DAgger`, and how often an agent succeeds beside each partner.

    make = imitation_env("crossing", expert="swerve", partners=["crossing_wanderer"])
    agent = cadenza.DAgger(make, seed=0).learn(50_000)
    print(success_by_partner(agent.predict, "crossing", ["crossing_wanderer"], episodes=50))

The expert is an ego policy, a partner or a scripted ego of the registries. It plays inside the
environment and may remember what it likes: a checkpoint brings an episode back by doing it again,
the expert included. Every episode draws one of the partners, each as likely as the others.

Seeds:  in the episode of seed k the stream ``benchmark.imitation.partner`` under root k chooses the
        partner; environment, partner and expert begin with seed k.
        A batch draws its partners as `stream_tasks` says.
Axes:   E = environments, D = entries of the ego's state, A = action components.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import (
    DrawnSeat,
    build_env,
    build_partner,
    partner_spec,
    require_player,
)
from cadenza.benchmark.ego_vector_env import EgoVectorEnv, make_batch
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, ego_seat, load_policy
from cadenza.benchmark.stream_tasks import EXPERTS, LawPolicy
from cadenza.benchmark.tasks import OptionValue, get_task
from cadenza.core.checks import whole_number
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError, UnknownNameError
from cadenza.core.proportions import clopper_pearson_interval
from cadenza.core.seeding import INTEGER_SEED_BOUND
from cadenza.core.signals import ends_on_signals
from cadenza.core.types import Observation
from cadenza.evaluation.statistics.paired_outcomes import paired_outcome_interval
from cadenza.learn.agents.dagger import DAgger
from cadenza.learn.callback import ORDER_CHECKPOINT, Callback
from cadenza.learn.nn.portable import SUFFIX, save_policy_file
from cadenza.partners.interface import FrozenPartner
from cadenza.partners.registry import list_registered

#: A partner: the name of its class, or the fields of a `PartnerConfig`.
Partner: TypeAlias = str | Mapping[str, Any] | PartnerConfig
#: The ego's states, (E, D), to its actions, (E, A), or the name of an expert.
Policy: TypeAlias = str | Callable[[NDArray[Any]], NDArray[Any]]


class TaughtSeat(DrawnSeat):
    """The ego's seat beside a partner that is drawn anew for every episode, watched by an expert.

    Attributes:
        names: Class of each partner that may be drawn, with its options.
    """

    def __init__(
        self, env: Any, partners: Sequence[FrozenPartner], names: Sequence[str], expert: str | None
    ) -> None:
        super().__init__(env, partners, stream="benchmark.imitation.partner")
        self.names: tuple[str, ...] = tuple(names)
        self._expert: EgoPolicy | None = None
        if expert is not None:
            self._expert = find_expert(expert, ego_seat(env, env.ego_uid))
        self._wanted: NDArray[Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode with the partner that ``seed`` draws; None draws a seed first."""
        if seed is None:
            seed = int(self.np_random.integers(INTEGER_SEED_BOUND))
        state, info = super().reset(seed=seed, options=options)
        if self._expert is not None:
            self._expert.reset(seed=seed)
        self._ask()
        return state, info

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Advance one control step; see `EgoGymEnv`."""
        outcome = super().step(action)
        self._ask()
        return outcome

    def expert_action(self) -> NDArray[Any]:
        """Return what the expert would do now, (A,).

        Raises:
            NotReadyError: There is no expert, or `reset` was never called.
        """
        return _told(self._wanted)

    def _ask(self) -> None:
        """Let the expert see the observation, once: it may remember."""
        if self._expert is not None and self._observation is not None:
            self._wanted = self._expert.act(self._observation)


def _told(wanted: NDArray[Any] | None) -> NDArray[Any]:
    """Return the action of the expert, or raise if there is none."""
    if wanted is None:
        raise NotReadyError(
            "expert_action: expected an expert and an episode in progress; pass expert= and call "
            "reset()."
        )
    return wanted


class TaughtBatch(EgoVectorEnv):
    """The ego's seat in E environments, each watched by an expert of its own.

    `EgoVectorEnv` says which partner plays in an episode; the expert begins with the same seed.
    """

    def __init__(self, env: Any, partners: Sequence[PartnerConfig], expert: str | None) -> None:
        super().__init__(env, partners)
        seat = ego_seat(env, self.ego_uid)
        rows = range(0 if expert is None else self.num_envs)
        self._experts = [find_expert(str(expert), seat) for _ in rows]
        self._wanted: NDArray[Any] | None = None

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode in every environment; see `EgoVectorEnv`."""
        states, info = super().reset(seed=seed, options=options)
        self._ask(states)
        return states, info

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance every environment; see `EgoVectorEnv`."""
        outcome = super().step(actions)
        self._ask(outcome[0])
        return outcome

    def expert_action(self) -> NDArray[Any]:
        """Return what the experts would do now, (E, A).

        Raises:
            NotReadyError: There is no expert, or `reset` was never called.
        """
        return _told(self._wanted)

    def has_wrapper_attr(self, name: str) -> list[bool]:
        """See `EgoVectorEnv`; experts cannot be brought back."""
        return [False] if self._experts else super().has_wrapper_attr(name)

    def _begin(self, rows: Sequence[int]) -> None:
        super()._begin(rows)
        for row in rows if self._experts else ():
            self._experts[row].reset(seed=int(self._episodes[row]))

    def _ask(self, states: NDArray[Any]) -> None:
        """Let every expert see its environment's state, once: it may remember."""
        if not self._experts:
            return
        seen = [{"agent": {self.ego_uid: {"state": state}}} for state in states]
        pairs = zip(self._experts, seen, strict=True)
        self._wanted = np.stack([expert.act(obs) for expert, obs in pairs])


def imitation_env(
    task: str,
    *,
    expert: str | None,
    partners: Sequence[Partner] = (),
    episode_length: int | None = None,
    root_seed: int = 0,
    **options: OptionValue,
) -> Callable[[], TaughtSeat]:
    """Return a function that makes environments for `cadenza.DAgger`.

    Args:
        task: Name of the task.
        expert: Name of an ego policy, a scripted ego or a partner class; a partner plays the ego's
            seat. None makes environments to judge in.
        partners: Who may play the partner's seat; empty takes the one that training uses.
        episode_length: Control steps until truncation; None takes the task's.
        root_seed: Experiment seed that scopes every episode.
        **options: Options of the task.

    Raises:
        ConfigurationError: Unknown task or option, or a partner of other tasks.
        UnknownNameError: A partner or the expert is not registered.
    """
    spec = get_task(task)
    players = [_player(partner) for partner in partners or [spec.seen_partner]]
    config = EnvConfig(task=task, episode_length=episode_length, options=options)
    make = partial(_make, config, players, expert, root_seed)
    make().close()  # what is wrong is said now
    return make


def imitation_batch(
    task: str,
    num_envs: int,
    *,
    expert: str | None,
    partners: Sequence[Partner] = (),
    episode_length: int | None = None,
    root_seed: int = 0,
    **options: OptionValue,
) -> TaughtBatch:
    """Return ``num_envs`` of `imitation_env` that are stepped as one, for tasks with batches.

    Faster than as many single ones. A batch keeps no state that could be saved: an agent that was
    loaded goes on with new episodes.

    Raises:
        ConfigurationError: As `imitation_env`, or the task has no batch that resets itself.
        UnknownNameError: As `imitation_env`.
    """
    spec = get_task(task)
    players = [_player(partner) for partner in partners or [spec.seen_partner]]
    for player in players:
        require_player(spec, player.class_name)
    length = episode_length or spec.episode_length
    env = make_batch(task, num_envs, episode_length=length, root_seed=root_seed, options=options)
    return TaughtBatch(env, players, expert)


def _player(partner: Partner) -> PartnerConfig:
    if isinstance(partner, str):
        return PartnerConfig(class_name=partner)
    return PartnerConfig.model_validate(partner)


def _make(
    config: EnvConfig, players: Sequence[PartnerConfig], expert: str | None, root_seed: int
) -> TaughtSeat:
    task = get_task(config.task)
    for player in players:
        require_player(task, player.class_name)
    env = build_env(config, root_seed=root_seed, partner=players[0])
    partners = [build_partner(player, env=env) for player in players]
    return TaughtSeat(env, partners, [_label(player) for player in players], expert)


def _label(player: PartnerConfig) -> str:
    """Return the partner's class, with its weights and options if it has any."""
    words = [f"{key}={value}" for key, value in player.extra.items()]
    told = ", ".join([*([player.weights_uri] if player.weights_uri else []), *words])
    return f"{player.class_name}({told})" if told else player.class_name


def find_expert(name: str, seat: EgoSeat) -> EgoPolicy:
    """Return the expert called ``name`` for an ego's seat.

    Raises:
        UnknownNameError: No registry knows the name; lists the known ones.
    """
    if name in EXPERTS:
        return LawPolicy(seat, EXPERTS[name].law)
    if name in list_registered():
        player = PartnerConfig(class_name=name, extra={"uid": seat.uid})
        return _PartnerExpert(build_partner(player), seat)
    try:
        return load_policy(name, seat=seat, artifacts_root=Path())
    except UnknownNameError as error:
        known = ", ".join(sorted({*EXPERTS, *list_registered()}))
        raise UnknownNameError(f"{str(error)[:-1]}, or an expert of {known}.") from error


class _PartnerExpert:
    """A partner that plays the ego's seat."""

    def __init__(self, partner: FrozenPartner, seat: EgoSeat) -> None:
        self._partner, self._seat = partner, seat

    def reset(self, *, seed: int) -> None:
        """Start an episode."""
        self._partner.reset(seed=seed)

    def act(self, obs: Observation) -> NDArray[Any]:
        """Return the ego's action, float32, shape (A,)."""
        action = self._partner.act(obs, deterministic=True)
        action = np.clip(action, self._seat.low, self._seat.high)
        return action[0].astype(np.int64) if self._seat.chooses else action


@dataclass(frozen=True, slots=True)
class Successes:
    """Which episodes succeeded, by their seeds, and what the partner was called.

    Sums keep a name that both have.
    """

    won: tuple[bool, ...]
    partner: str = field(default="", compare=False)

    @property
    def count(self) -> int:
        """Episodes that succeeded."""
        return sum(self.won)

    def __add__(self, other: "Successes") -> "Successes":
        """Return these episodes and those of ``other``."""
        name = self.partner if self.partner == other.partner else ""
        return Successes(self.won + other.won, name)

    def minus(self, other: "Successes") -> tuple[float, float, float]:
        """Return the difference of the rates on the same episodes, with its exact 95 % bounds."""
        pairs = list(zip(self.won, other.won, strict=True))
        wins, losses = pairs.count((True, False)), pairs.count((False, True))
        bounds = paired_outcome_interval(wins, losses, len(pairs), tail=0.025)
        return (wins - losses) / len(pairs), *bounds

    def __str__(self) -> str:
        """Return the count, with the exact 95 % interval of this one policy (Clopper-Pearson)."""
        low, high = clopper_pearson_interval(self.count, len(self.won))
        return f"{self.count} of {len(self.won)} [{low:.2f}, {high:.2f}]"


def success_by_partner(
    policy: Policy,
    task: str,
    partners: Sequence[Partner],
    *,
    episodes: int,
    root_seed: int = 1_000_000,
    episode_length: int | None = None,
    **options: OptionValue,
) -> dict[str, Successes]:
    """Play episodes beside each partner and return how many succeed, by the partner's identity.

    That is `PartnerSpec.content_id`, which no two members of a zoo share; `Successes.partner` is
    the name given, with weights and options.

    Args:
        policy: The ego: an agent's ``predict``, or the name of an expert.
        task: Name of the task, one with a success predicate.
        partners: Each plays all episodes.
        episodes: Episodes beside each, >= 1; their seeds are 0, 1, ...
        root_seed: Experiment seed that scopes every episode, apart from that of a training.
        episode_length: See `imitation_env`.
        **options: Options of the task.

    Raises:
        ConfigurationError: The task has no success predicate, a partner is given twice, or as
            `imitation_env`.
        UnknownNameError: As `imitation_env`.
    """
    if not get_task(task).has_success:
        raise ConfigurationError(
            f"success_by_partner: expected a task with a success predicate, got {task!r}; use the "
            "agent's evaluate()."
        )
    spec, expert = get_task(task), policy if isinstance(policy, str) else None
    settings: dict[str, Any] = {"episode_length": episode_length, "root_seed": root_seed, **options}
    judged: dict[str, Successes] = {}
    for partner in partners:
        player = _player(partner)
        identity = partner_spec(player).content_id
        if identity in judged:
            raise ConfigurationError(
                f"success_by_partner: expected different partners, got {_label(player)} twice; "
                "play more episodes instead."
            )
        played: dict[str, Any] = {"expert": expert, "partners": [partner], **settings}
        if spec.supports_batches:
            batch = imitation_batch(task, episodes, **played)
            won = _played_together(policy, batch)
            batch.close()
        else:
            env = imitation_env(task, **played)()
            won = [_succeeds(policy, env, seed) for seed in range(episodes)]
            env.close()
        judged[identity] = Successes(tuple(won), _label(player))
    return judged


def _played_together(policy: Policy, batch: TaughtBatch) -> list[bool]:
    """Return which of the first episodes of a batch succeed."""
    states, _ = batch.reset(seed=0)
    won, running = np.zeros((2, batch.num_envs), dtype=np.bool_)
    running[:] = True
    while running.any():
        actions = batch.expert_action() if isinstance(policy, str) else policy(states)
        states, _, terminated, truncated, info = batch.step(actions)
        ended = running & (terminated | truncated)
        won |= ended & info["success"]
        running &= ~ended
    return won.tolist()


def _succeeds(policy: Policy, env: TaughtSeat, seed: int) -> bool:
    """Return whether the episode of ``seed`` succeeds."""
    state, info = env.reset(seed=seed)
    done = False
    while not done:
        action = env.expert_action() if isinstance(policy, str) else policy(state[None])[0]
        state, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    return bool(info["success"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: holds live objects
class Imitation:
    """What `imitate` did.

    Attributes:
        agent: The pupil.
        policy: File that an evaluation can name, ``local://agent.policy.safetensors`` in the
            folder.
        resumed_from: Steps that an earlier run had done; None for a new one.
        judged: Successes by the partner's identity; empty for tasks without a success predicate.
    """

    agent: DAgger
    policy: Path
    resumed_from: int | None
    judged: Mapping[str, Successes]


@ends_on_signals
def imitate(
    task: str,
    *,
    expert: str,
    partners: Sequence[Partner] = (),
    out: Path,
    steps: int = 50_000,
    num_envs: int = 25,
    seed: int = 0,
    episodes: int = 50,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Imitation:
    """Train a pupil in a folder, judge it beside each partner, and write its policy.

    Args:
        task: Name of the task.
        expert: See `imitation_env`.
        partners: See `imitation_env`.
        out: Gets ``agent`` and its policy file after every round; the last one names the task.
        steps: Environment steps in total, those of an earlier run included.
        num_envs: Environments; stepped as one where the task can be.
        seed: Root of everything random.
        episodes: Episodes beside each partner, >= 1.
        resume: Go on from ``out``; where the environments are a batch, with new episodes.
        progress: Show a bar.
        **settings: Of `cadenza.DAgger`.

    Raises:
        ConfigurationError: ``out`` holds an agent and ``resume`` is not set, or as `imitation_env`.
        CheckpointError: ``resume`` found a damaged agent, or one of other spaces.
    """
    spec, file, path = get_task(task), out / "agent", out / f"agent{SUFFIX}"
    if (file.exists() and not resume) or (path.exists() and not file.exists()):
        raise ConfigurationError(
            f"{out}: expected a folder without an agent, got one that began before; set resume to "
            "continue it, or name another folder."
        )
    worlds: dict[str, Any] = {"expert": expert, "partners": partners, "root_seed": seed}
    envs: Any
    if spec.supports_batches:
        envs = imitation_batch(task, num_envs, **worlds)
    else:
        envs = imitation_env(task, **worlds)
    count = {} if spec.supports_batches else {"num_envs": num_envs}
    if file.exists():
        agent = DAgger.load(file, envs, **count, seed=seed, **settings)
    else:
        agent = DAgger(envs, seed=seed, **count, **settings)
    before = agent.steps if file.exists() else None
    if agent.steps < steps:
        agent.learn(steps - agent.steps, callbacks=_Keep(agent, file), progress=progress)
    judged: Mapping[str, Successes] = {}
    if spec.has_success:
        players = partners or [spec.seen_partner]
        judged = success_by_partner(agent.predict, task, players, episodes=episodes)
    save_policy_file(replace(agent.networks()[""], task={"id": task}, seat="ego"), path)
    return Imitation(agent=agent, policy=path, resumed_from=before, judged=judged)


class _Keep(Callback):
    """Saves an agent after every round; a round that was interrupted is done again."""

    def __init__(self, agent: DAgger, file: Path) -> None:
        super().__init__()
        self._agent, self._file = agent, file

    def end_batch(self) -> None:
        """Save after the last update of a round."""
        if self._agent.updates % self._agent.config.updates == 0:
            self._agent.save(self._file)


#: Experiment seed of the validation episodes: neither a training's nor that of a final evaluation.
VALIDATION_SEED: Final = 2_000_000


class BestSuccess(Callback):
    """Judges an agent now and then, and saves it when it succeeds more often than ever before.

    A reward that shapes the training says little about success, and what was learned may be lost
    again. The episodes are those of the judged task, without its training options; none of them is
    played in training or in a final evaluation.

        envs = imitation_batch("cocarry_mj", 4, expert=None, training=1, reward="proximity")
        agent = cadenza.SAC(envs, seed=0)
        best = BestSuccess(agent, "runs/best", "cocarry_mj", ["cocarry_leader"], every=2_000)
        agent.learn(10_000, callbacks=best)
        agent = cadenza.SAC.load(best.file, envs)

    Args:
        agent: Whose turn it is; it has ``steps``, ``predict`` and ``save``.
        file: Gets the best agent, without its replay memory.
        task: Name of the task, one with a success predicate.
        partners: Each plays all episodes.
        every: Environment steps between judgements, >= 1.
        episodes: Episodes beside each partner, >= 1.
        policy: What plays, (N, O) to (N, A), e.g. a law that the agent corrects; None takes the
            agent's ``predict``.
        report: Called with the agent's steps and the partners' successes after each judgement.
        **options: Options of the task that the episodes have.

    Attributes:
        best: Successes of the best agent; None before the first judgement.
        best_steps: Its environment steps; None before the first judgement.

    Raises:
        InputError: ``every`` or ``episodes`` is no whole number >= 1, or ``file`` is there already.
    """

    def __init__(
        self,
        agent: Any,
        file: str | Path,
        task: str,
        partners: Sequence[Partner],
        *,
        every: int,
        episodes: int = 50,
        policy: Policy | None = None,
        report: Callable[[int, Successes], None] | None = None,
        **options: OptionValue,
    ) -> None:
        super().__init__()
        for key, value in (("every", every), ("episodes", episodes)):
            whole_number(f"BestSuccess.{key}", value, least=1)
        if Path(file).exists():
            raise InputError(
                f"BestSuccess: expected no file {file} yet, got the best of another training; name "
                "another file, or remove it."
            )
        self._order = ORDER_CHECKPOINT
        self._agent = agent
        self.file: Path = Path(file)
        self._policy: Policy = agent.predict if policy is None else policy
        self._task, self._partners = task, list(partners)
        self._options: dict[str, Any] = dict(options)
        self._every, self._episodes, self._report = every, episodes, report
        self._judged_at = agent.steps
        self.best: Successes | None = None
        self.best_steps: int | None = None

    def end_batch(self) -> None:
        """Judge the agent if its turn has come."""
        if self._agent.steps // self._every > self._judged_at // self._every:
            self._judge()

    def end_training(self, exception: BaseException | None = None) -> None:
        """Judge what there is at the end, unless that was done or something went wrong."""
        if exception is None and (self.best is None or self._agent.steps > self._judged_at):
            self._judge()

    def _judge(self) -> None:
        agent = self._agent
        self._judged_at = agent.steps
        judged = success_by_partner(
            self._policy,
            self._task,
            self._partners,
            episodes=self._episodes,
            root_seed=VALIDATION_SEED,
            **self._options,
        )
        total = sum(judged.values(), Successes(()))
        if self.best is None or total.count > self.best.count:
            self.best, self.best_steps = total, agent.steps
            agent.save(self.file, memory=False)
        if self._report is not None:
            self._report(agent.steps, total)
