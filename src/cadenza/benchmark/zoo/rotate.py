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
from torch import Tensor

from cadenza.aht.config import EnvConfig
from cadenza.benchmark.builders import build_env, code_digest
from cadenza.benchmark.ego_vector_env import EgoVectorEnv
from cadenza.benchmark.output_folder import open_output_folder
from cadenza.benchmark.tasks import OptionValue, get_task
from cadenza.benchmark.zoo.build import store_request
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import (
    Driver,
    FrozenPlayers,
    Keeper,
    LearningPlayers,
    Moment,
    new_learner,
    normalized,
    plain_policy,
    play,
)
from cadenza.core.arrays import FloatArray
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    save_checkpoint,
)
from cadenza.core.device import single_torch_thread
from cadenza.core.seeding import Substream, derive_substream
from cadenza.learn.agents.ppo import PPO, MAPPOConfig
from cadenza.learn.agents.self_play import CopyPlayer, SelfPlayConfig
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.learn.settings import Count, FrozenModel
from cadenza.learn.stacked.ppo import Estimate, StackedPPO

#: Moments of a rollout at which states are kept, of every environment.
STORED: Final = 8
_STATE: Final = "rotate"


class RotateConfig(FrozenModel):
    """ROTATE.

    Attributes:
        task: What is played.
        options: Options of the task.
        episode_length: Steps of an episode; None takes the task's.
        seed: Root of all streams.
        iterations: Turns of partners and ego.
        partners: K, new ones in each iteration.
        num_envs: N, of each partner, and K N of the ego.
        partner_steps: Environment steps of the partners' training in an iteration, of all rollouts.
        ego_steps: Those of the ego's.
        partner_ppo: Settings of partners and best responses.
        ego: Those of the ego.
    """

    task: str
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    episode_length: int | None = Field(default=None, gt=0)
    seed: int = Field(default=0, ge=0)
    iterations: Count = Field(default=8, ge=1)
    partners: Count = Field(default=4, ge=1)
    num_envs: Count = Field(default=16, ge=1)
    partner_steps: Count = Field(default=400_000, ge=1)
    ego_steps: Count = Field(default=300_000, ge=1)
    partner_ppo: MAPPOConfig = Field(default_factory=MAPPOConfig)
    ego: SelfPlayConfig = Field(default_factory=SelfPlayConfig)

    @property
    def horizon(self) -> int:
        """Control steps of an episode."""
        return self.episode_length or get_task(self.task).episode_length


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
        self._seat = EgoVectorEnv(self._make(count), None)
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
            episode_length=config.horizon,
            num_envs=count,
            options=config.options,
        )
        return build_env(settings, root_seed=config.seed)

    def iterate(self) -> RotateFigures:
        """Train new partners against the ego, and the ego beside all of them."""
        config, number = self.config, len(self.figures)
        stage = _Stage(self, number)
        per_update = 3 * config.partner_ppo.rollout_length * config.num_envs * config.partners
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


def train_rotate(config: RotateConfig, folder: str | Path) -> Rotate:
    """Train to the end, from the last iteration in ``folder`` on; the ego's policy lies there.

    Raises:
        ConfigurationError: The folder is of a training with other settings, but for iterations, or
            other code.
        NotReadyError: Another process works there.
        StorageError: The file system refused.
        CheckpointError: What lies there is damaged.
    """
    folder = Path(folder)
    with single_torch_thread(), open_output_folder(folder, mode="resume"):
        settings = config.model_dump(mode="json", exclude={"iterations"})
        asked = {"config": settings | {"episode_length": config.horizon}}
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


class _Ego(Driver):
    """The frozen ego in the first place, with its memory of this episode."""

    def __init__(self, ego: PortableNetwork, env: PairEnv, rng: np.random.Generator) -> None:
        self._ego, self._rng = ego, rng
        self._memory = np.zeros((env.num_envs, ego.state_width), np.float32)

    def drive(self, moment: Moment) -> None:
        """See `Driver`."""
        ego, states = self._ego, moment.before
        noise = ego.draw_noise(self._rng, states.shape[1])
        seen = np.ascontiguousarray(states[0, :, : ego.observation_dim])
        acted, self._memory = ego.step(seen, self._memory, noise)
        moment.actions[0][...] = acted.reshape(moment.actions[0].shape)

    def observe(self, moment: Moment) -> None:
        """Forget episodes that ended."""
        self._memory[moment.step.boundaries] = 0.0


class _Stage:
    """New partners and best responses of one iteration, and the frozen ego."""

    def __init__(self, training: Rotate, number: int) -> None:
        self.config, self.env = training.config, training.pairs
        self._name = f"rotate.{number}"
        self._ego = training.ego.networks()[""]
        self._rng = self._stream("play").default_rng()
        #: Places of the best responses and of the partners, and what both are told: nothing.
        self._places = np.arange(2 * self.env.num_envs).reshape(2, self.config.partners, -1)
        self._told = np.zeros((*self._places.shape[1:], 0), np.float32)
        names = [f"partner {number}.{k}" for k in range(self.config.partners)]
        self.partners, self.responses = (
            new_learner(
                self.config.partner_ppo,
                self.env,
                told=0,
                judged=2,
                seeds=[self._stream(f"{kind}.{k}").integer_seed() for k in range(len(names))],
                names=names,
                normalize_advantages=False,  # rollouts are, see `_signed`
            )
            for kind in ("partner", "response")
        )

    def _stream(self, purpose: str) -> Substream:
        return derive_substream(f"{self._name}.{purpose}", root_seed=self.config.seed)

    def update(self, number: int, total: int) -> None:
        """Play the rollouts of one update, and learn from them."""
        config, env, length = self.config, self.env, self.config.partner_ppo.rollout_length
        steps = 3 * config.num_envs * length
        counts: dict[str, Any] = {"done": number * steps, "total": total * steps}
        partners = self._learning(self.partners, 1, beside_ego=True)
        moments = set(np.linspace(0, length - 1, min(length, STORED)).astype(int).tolist())
        kept = Keeper(env, lambda t: range(env.num_envs) if t in moments else ())
        drivers = [kept, partners, _Ego(self._ego, env, self._rng)]
        play(env, drivers, length, seeds=self._stream(f"xp.{number}").integer_seed())
        learned, answered = [self._signed(partners, -1.0)], list[Estimate]()
        for purpose, restart in (("sp", None), ("sxp", kept.restart(self._own_block))):
            partners = self._learning(self.partners, 1)
            responses = self._learning(self.responses, 0)
            seed = self._stream(f"{purpose}.{number}").integer_seed()
            play(env, [partners, responses], length, seeds=seed, restart=restart)
            learned.append(self._signed(partners, 1.0))
            answered.append(self._signed(responses, 1.0))
        self.responses.update(*answered, **counts)
        self.partners.update(*learned, **counts)

    def partner(self, index: int) -> PortableNetwork:
        """Return what partner ``index`` plays."""
        return plain_policy(self.partners, index, self.env, 1, np.zeros(0))

    def returns(self, ego: PortableNetwork | None) -> FloatArray:
        """Return what an episode with ``ego`` pays, or with best responses, (K,)."""
        env, config = self.env, self.config
        first = self._drawn(self.responses, 0) if ego is None else _Ego(ego, env, self._rng)
        paid = play(
            env,
            [self._drawn(self.partners, 1), first],
            config.horizon,
            seeds=self._stream("returns").integer_seed(),
            once=True,
        )
        return paid.reshape(config.partners, -1).mean(axis=1)

    def _learning(
        self, learners: StackedPPO, robot: int, *, beside_ego: bool = False
    ) -> LearningPlayers:
        """Return policies in their places, and a rollout of them."""
        judged = np.eye(2, dtype=np.float32)[int(beside_ego)]
        length = self.config.partner_ppo.rollout_length
        return LearningPlayers(learners, self.env, self._places[robot], length, judged, self._told)

    def _drawn(self, learners: StackedPPO, robot: int) -> FrozenPlayers:
        """Return policies in their places, of which nothing is learned."""

        def noise(_: int) -> Tensor:
            seed = int(self._rng.integers(2**62))
            return learners.draw_noise(1, self.config.num_envs, seed)[0]

        return FrozenPlayers(learners, self.env, self._places[robot], noise, told=self._told)

    def _own_block(self, rows: NDArray[np.int64], kept: int) -> NDArray[np.int64]:
        """Draw one of the kept states of its partner's environments for each row."""
        count, size = self.config.num_envs, self.env.num_envs
        moments = self._rng.integers(kept // size, size=len(rows))
        return moments * size + rows // count * count + self._rng.integers(count, size=len(rows))

    def _signed(self, played: LearningPlayers, sign: float) -> Estimate:
        """Return estimates whose advantages are normalised by partner, times ``sign``."""
        estimate = played.learner.estimate(played.rollout)
        return estimate.with_advantages(sign * normalized(estimate.advantages, (1, 2)))
