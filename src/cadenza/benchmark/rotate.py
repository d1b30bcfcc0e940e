"""ROTATE: an ego and its partners in turns, each new partner one whose potential the ego misses.

Every iteration draws K new partners, each with a best response of its own, and trains them against
the ego, which is frozen and draws its actions; then the ego, PPO with a memory, learns beside all
partners so far, one of them drawn per episode. An update of a partner plays three rollouts:
    XP   beside the ego
    SP   beside its best response
    SXP  beside its best response, episodes beginning at states of this update's XP, clock included
and climbs three clipped surrogates, of −A on XP and of A on SP and SXP, each normalised by itself:
it lowers what the ego gets and raises what could be had, also from where the ego leads, so that it
does not merely spoil. Best responses learn from SP and SXP as PPO does.

Source:      arXiv:2505.23686 (ROTATE), with advantages as its gradient (mode "gae").
Departures:  no partner-ego rollouts from states of SP, which only served a critic; K partners at
             once; one critic that is told who drives the other robot instead of two.
Axes:        2 = ego and partner, K = partners, N = environments of each, T = steps, O = state.
Randomness:  streams ``rotate.{iteration}...`` of the seed; the ego's as of `cadenza.PPO`.
Resuming:    after every iteration; what follows has the same bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cadenza.aht.config import EnvConfig
from cadenza.benchmark.builders import build_env, code_digest
from cadenza.benchmark.open_seat import OpenSeatEnv
from cadenza.benchmark.output_folder import open_output_folder
from cadenza.benchmark.tasks import OptionValue, get_task
from cadenza.benchmark.zoo.build import store_request
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import plain_policy
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    save_checkpoint,
)
from cadenza.core.device import single_torch_thread
from cadenza.core.seeding import derive_substream
from cadenza.envs.vector_base import Snapshot
from cadenza.learn.agents.ppo import PPO, MAPPOConfig
from cadenza.learn.agents.self_play import CopyPlayer, SelfPlayConfig
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.learn.settings import Count, FrozenModel
from cadenza.learn.stacked.ppo import Estimate, StackedPPO
from cadenza.learn.stacked.rollout import Cut, StackedRollout

#: Moments of a rollout at which states are kept, of every environment.
STORED: Final = 8
#: Added to the standard deviation of advantages.
_EPSILON: Final = 1e-8
_STATE: Final = "rotate"


class RotateConfig(FrozenModel):
    """ROTATE.

    Attributes:
        task: What is played.
        options: Options of the task.
        episode_length: Steps of an episode.
        seed: Root of all streams.
        iterations: Turns of partners and ego.
        partners: K, new ones in each iteration.
        num_envs: N, of each partner, and K N of the ego.
        partner_steps: Environment steps of the partners' training in an iteration, of all rollouts.
        ego_steps: Those of the ego's.
        minimax: Leave SP and SXP away: partners that only spoil, to compare with.
        partner_ppo: Settings of partners and best responses.
        ego: Those of the ego.
    """

    task: str
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    episode_length: Count = 50
    seed: int = Field(default=0, ge=0)
    iterations: Count = 8
    partners: Count = 4
    num_envs: Count = 16
    partner_steps: Count = 400_000
    ego_steps: Count = 300_000
    minimax: bool = False
    partner_ppo: MAPPOConfig = Field(default_factory=MAPPOConfig)
    ego: SelfPlayConfig = Field(default_factory=SelfPlayConfig)


class RotateFigures(NamedTuple):
    """What an iteration reached: mean returns, (K,), beside best responses and beside the ego.

    ``after`` are those of the same partners beside the ego when it has learned.
    """

    best: FloatArray
    before: FloatArray
    after: FloatArray

    @property
    def regret(self) -> FloatArray:
        """What the ego missed before it learned, (K,)."""
        return self.best - self.before


class Everyone(CopyPlayer):
    """Plays every episode by one of all partners so far, each as likely."""

    def _age(self, row: int) -> int:
        del row
        return int(self.draws.integers(max(1, self._made)))


class Rotate:
    """The training, iteration by iteration.

    Args:
        config: Settings.
        make: Makes a batch of so many environments; None makes those of the task.

    Attributes:
        ego: The agent that learns.
        everyone: Who plays beside it.
        figures: What each iteration reached.
    """

    def __init__(self, config: RotateConfig, make: Any = None) -> None:
        self.config = config
        count = config.partners * config.num_envs
        self._make = make or self._of_task
        self.pairs: PairEnv = PairEnv(self._make(count))
        self._seat = OpenSeatEnv(self._make(count))
        draws = derive_substream("rotate.everyone", root_seed=config.seed).default_rng()
        kept = config.iterations * config.partners
        self.everyone: Everyone = Everyone(count, keep=kept, draws=draws)
        self._seat.seat_partner(self.everyone)
        self.ego: PPO = PPO(self._seat, seed=config.seed, **config.ego.model_dump())
        self.figures: list[RotateFigures] = []

    def _of_task(self, count: int) -> Any:
        config = self.config
        settings = EnvConfig(
            task=config.task,
            episode_length=config.episode_length,
            num_envs=count,
            options=config.options,
        )
        return build_env(settings, root_seed=config.seed)

    def iterate(self) -> RotateFigures:
        """Train new partners against the ego, and the ego beside all of them."""
        config, number = self.config, len(self.figures)
        stage = _Stage(self, number)
        per_update = (1 if config.minimax else 3) * config.partner_ppo.rollout_length
        per_update *= config.num_envs * config.partners
        updates = max(1, config.partner_steps // per_update)
        for update in range(updates):
            stage.update(update, updates)
        best, before = stage.returns(None), stage.returns(self.ego.networks()[""])
        for k in range(config.partners):
            self.everyone.add(stage.partner(k))
        self.ego.begin(0)  # leaves episodes of the last iteration, those of a file too
        self.ego.forget()
        self.ego.learner.optimizer.state.clear()
        self.ego.learn(config.ego_steps, progress=False)
        after = stage.returns(self.ego.networks()[""])
        told = RotateFigures(best, before, after)
        self.figures.append(told)
        return told

    def state_dict(self) -> dict[str, Any]:
        """Return everything later iterations depend on: tensors and plain values."""
        return {
            "ego": self.ego.state_dict(),
            "everyone": self.everyone.state_dict(),
            "figures": [[part.tolist() for part in each] for each in self.figures],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, between two iterations."""
        self.ego.load_state_dict(dict(state["ego"]))
        self.ego.begin(0)
        self.everyone.load_state_dict(state["everyone"])
        self.figures = [RotateFigures(*map(np.array, each)) for each in state["figures"]]


def train_rotate(config: RotateConfig, folder: Path) -> Rotate:
    """Train to the end, from the last iteration in ``folder`` on; the ego's policy lies there.

    Raises:
        ConfigurationError: The folder is of a training with other settings, but for iterations, or
            other code.
        NotReadyError: Another process works there.
        StorageError: The file system refused.
        CheckpointError: What lies there is damaged.
    """
    with single_torch_thread(), open_output_folder(folder, mode="resume"):
        asked = {"config": config.model_dump(mode="json", exclude={"iterations"})}
        code = code_digest(get_task(config.task), ())
        git_sha, project = store_request(folder, asked, code, kind=_STATE, seed=config.seed)
        training, uri = Rotate(config), f"{LOCAL_URI_SCHEME}{_STATE}.pt"
        if (folder / f"{_STATE}.pt").exists():
            content, _ = load_checkpoint(uri=uri, artifacts_root=folder)
            training.load_state_dict(content)
        while len(training.figures) < config.iterations:
            training.iterate()
            metadata = CheckpointMetadata(
                run_id=_STATE,
                seed=config.seed,
                step=len(training.figures),
                git_sha=git_sha,
                pyproject_hash=project,
            )
            training.ego.export_policy(folder / "ego")
            save_checkpoint(
                state_dict=training.state_dict(),
                uri=uri,
                metadata=metadata,
                artifacts_root=folder,
            )
    return training


class _Stage:
    """New partners and best responses of one iteration, and the frozen ego."""

    def __init__(self, training: Rotate, number: int) -> None:
        self.config, self.env = training.config, training.pairs
        self._name = f"rotate.{number}"
        self._ego = training.ego.networks()[""]
        self._rng = self._stream("play").default_rng()
        names = [f"partner {number}.{k}" for k in range(self.config.partners)]
        self.partners: StackedPPO = self._learners("partner", names)
        self.responses: StackedPPO = self._learners("response", names)

    def _stream(self, purpose: str) -> Any:
        return derive_substream(f"{self._name}.{purpose}", root_seed=self.config.seed)

    def _learners(self, kind: str, names: list[str]) -> StackedPPO:
        env, plain = self.env, {"normalize_advantages": False}  # rollouts are, see `_signed`
        return StackedPPO(
            self.config.partner_ppo.model_copy(update=plain),
            observation_dim=env.observation_dim,
            critic_dim=2 * env.observation_dim + 2,
            choices=env.choices,
            action_dim=env.action_dim,
            seeds=[self._stream(f"{kind}.{k}").integer_seed() for k in range(len(names))],
            names=names,
        )

    def update(self, number: int, total: int) -> None:
        """Play the rollouts of one update, and learn from them."""
        rollouts = 1 if self.config.minimax else 3
        steps = rollouts * self.config.num_envs * self.config.partner_ppo.rollout_length
        counts: dict[str, Any] = {"done": number * steps, "total": total * steps}
        across, _, kept = self._rollout(f"xp.{number}", beside_ego=True)
        learned = [self._signed(self.partners, across, -1.0)]
        if not self.config.minimax:
            own, theirs, _ = self._rollout(f"sp.{number}")
            again, answered, _ = self._rollout(f"sxp.{number}", kept=kept)
            learned += [self._signed(self.partners, each, 1.0) for each in (own, again)]
            responses = [self._signed(self.responses, each, 1.0) for each in (theirs, answered)]
            self.responses.update(*responses, **counts)
        self.partners.update(*learned, **counts)

    def partner(self, index: int) -> PortableNetwork:
        """Return what partner ``index`` plays."""
        moments = self.partners.observation_moments(index)
        return plain_policy(
            self.partners.policy(index),
            self.env,
            1,
            np.zeros(0),
            activation=self.config.partner_ppo.activation,
            moments=None if moments is None else np.stack(moments),
        )

    def returns(self, ego: PortableNetwork | None) -> FloatArray:
        """Return what an episode with ``ego`` pays, or with best responses, (K,)."""
        env, config = self.env, self.config
        states = env.reset(self._stream("returns").integer_seed())
        memory = np.zeros((env.num_envs, 0 if ego is None else ego.state_width), np.float32)
        total, running = np.zeros(env.num_envs), np.ones(env.num_envs, np.bool_)
        for _ in range(config.episode_length):
            rows = self._by_partner(states)
            move = self._drawn(self.partners, rows[1])
            if ego is None:
                mine = env.scaled(0, self._drawn(self.responses, rows[0]))
            else:
                mine, memory = self._played(ego, states[0], memory)
            step = env.step([mine, env.scaled(1, move)])
            total += np.where(running, step.rewards, 0.0)
            running &= ~step.boundaries
            states = step.states
            if not running.any():
                break
        return total.reshape(config.partners, -1).mean(axis=1)

    def _rollout(
        self, purpose: str, *, beside_ego: bool = False, kept: list[Snapshot] | None = None
    ) -> tuple[StackedRollout, StackedRollout, list[Snapshot]]:
        """Play; return what partners and best responses are to learn, and states on the way."""
        env, config = self.env, self.config
        steps, count = config.partner_ppo.rollout_length, config.num_envs
        mine, theirs = (
            learners.new_rollout(steps=steps, rows=count)
            for learners in (self.partners, self.responses)
        )
        moments = set(np.linspace(0, steps - 1, min(steps, STORED)).astype(int).tolist())
        states = env.reset(self._stream(purpose).integer_seed())
        states = states if kept is None else self._restart(np.arange(env.num_envs), kept)
        memory = np.zeros((env.num_envs, self._ego.state_width), np.float32)
        found: list[Snapshot] = []
        for t in range(steps):
            if beside_ego and t in moments:
                found.append(env.snapshot(range(env.num_envs)))
            rows = self._by_partner(states)
            move = self._decide(self.partners, mine, t, rows[1])
            if beside_ego:
                acted, memory = self._played(self._ego, states[0], memory)
            else:
                acted = env.scaled(0, self._decide(self.responses, theirs, t, rows[0]))
            step = env.step([acted, env.scaled(1, move)])
            for rollout in (mine, theirs):
                rollout.critic_observations[:, t] = self._judged(states, beside_ego)
                rollout.rewards[:, t] = step.rewards.reshape(-1, count)
                rollout.boundaries[:, t] = step.boundaries.reshape(-1, count)
                final = self._judged(step.following, beside_ego)
                for member in np.unique(step.cut // count).tolist():
                    own = step.cut[step.cut // count == member] % count
                    rollout.cuts.append(Cut(member, t, own, final[member, own]))
            ended, states = np.flatnonzero(step.boundaries), step.states
            memory[ended] = 0.0
            if kept is not None and len(ended):
                states = self._restart(ended, kept)
        for rollout in (mine, theirs):
            rollout.critic_observations[:, -1] = self._judged(states, beside_ego)
        return mine, theirs, found

    def _restart(self, rows: NDArray[np.int64], kept: list[Snapshot]) -> Float32Array:
        """Put environments at states that the ego came to; return those of all, (2, K N, O)."""
        count = self.config.num_envs
        moments = self._rng.integers(len(kept), size=len(rows))
        places = rows // count * count + self._rng.integers(count, size=len(rows))
        drawn: Snapshot = {}
        for name in kept[0]:
            found: list[Any] = [kept[m][name][p] for m, p in zip(moments, places, strict=True)]
            drawn[name] = np.stack(found)
        return self.env.restore(rows.tolist(), drawn)

    def _decide(
        self, learners: StackedPPO, rollout: StackedRollout, t: int, rows: Float32Array
    ) -> NDArray[Any]:
        """Draw decisions and keep them, (K N, ...)."""
        rollout.observations[:, t] = learners.scale(rows, learn=True)
        decided = learners.act(rollout.observations[:, t])
        rollout.decisions[:, t] = decided
        return decided.reshape(-1, *decided.shape[2:])

    def _drawn(self, learners: StackedPPO, rows: Float32Array) -> NDArray[Any]:
        """Draw decisions of which nothing is learned, (K N, ...)."""
        noise = learners.draw_noise(1, rows.shape[1], int(self._rng.integers(2**62)))[0]
        decided = learners.act(learners.scale(rows, learn=False), noise=noise)
        return decided.reshape(-1, *decided.shape[2:])

    def _played(
        self, ego: PortableNetwork, states: Float32Array, memory: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Return the ego's draws, (K N, A), and what it remembers."""
        draw = self._rng.gumbel if ego.output.chooses else self._rng.standard_normal
        noise = np.asarray(draw(size=(len(states), ego.width)), np.float32)
        seen = np.ascontiguousarray(states[:, : ego.observation_dim])
        acted, memory = ego.step(seen, memory, noise)
        return acted.reshape(len(states), -1).astype(np.float32), memory

    def _by_partner(self, states: Float32Array) -> Float32Array:
        """Return states by partner, (2, K, N, O)."""
        return states.reshape(2, self.config.partners, self.config.num_envs, -1)

    def _judged(self, states: Float32Array, beside_ego: bool) -> Float32Array:
        """Return what critics see, (K, N, 2 O + 2)."""
        both = self._by_partner(states)
        told = np.zeros((*both.shape[1:3], 2), np.float32)
        told[..., int(beside_ego)] = 1.0
        return np.concatenate((both[0], both[1], told), axis=-1)

    def _signed(self, learners: StackedPPO, rollout: StackedRollout, sign: float) -> Estimate:
        """Return estimates whose advantages are normalised by partner, times ``sign``."""
        estimate = learners.estimate(rollout)
        advantages = estimate.advantages.astype(np.float64)
        centred = advantages - advantages.mean(axis=(1, 2), keepdims=True)
        spread = advantages.std(axis=(1, 2), keepdims=True) + _EPSILON
        return estimate.with_advantages(sign * centred / spread)
