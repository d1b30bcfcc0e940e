"""The ready-made tasks, streamed by a live producer: each slot holds one episode of the task."""

import numpy as np
import pytest

from cadenza.benchmark.stream_tasks import EXPERTS, stream_config, stream_partners
from cadenza.stream import OnlineDataEngine
from cadenza.stream.bridges.episodes import Episode, EpisodeReader
from cadenza.stream.producer import producer_seed
from tests.campaigns import size
from tests.stream_engines import eventually
from tests.stream_replays import first_states, play_again

ROOT_SEED = 11
WANTED = size(2, 4)


def streamed(task: str) -> list[Episode]:
    """Return the first episodes of one producer with two environments."""
    config = stream_config(
        task,
        producers=1,
        num_envs=2,
        seed=ROOT_SEED,
        buffer_size=WANTED,
        mode="continuous",
        high_water=WANTED,
        initialization_timeout=800,
    )
    with OnlineDataEngine(config) as engine:
        reader, episodes = EpisodeReader(engine.store), []
        eventually(lambda: episodes.extend(reader.take()) or len(episodes) >= WANTED, "they come")
    return episodes[:WANTED]


@pytest.mark.parametrize("task", sorted({expert.task for expert in EXPERTS.values()}))
def test_episodes_of_a_producer_are_replayed_step_by_step_by_the_scalar_task(task):
    episodes = streamed(task)
    first = producer_seed(ROOT_SEED, 0, 0, "environment")
    begins = {
        first_states(task, root_seed=ROOT_SEED, seed=seed).tobytes(): seed
        for seed in range(first, first + 4 * WANTED)
    }
    seeds = [begins[episode.states["obs"][0].tobytes()] for episode in episodes]
    assert len(set(seeds)) == WANTED  # no episode twice
    for episode, seed in zip(episodes, seeds, strict=True):
        require_replay(task, episode, seed)


def require_replay(task: str, episode: Episode, seed: int) -> None:
    """Fail unless the episode is that of ``seed`` beside one of the partners, to the last bit."""
    matches = 0
    for partner in stream_partners(task):
        states, rewards, terminated, success = play_again(
            task, partner, root_seed=ROOT_SEED, seed=seed, actions=episode.steps["actions"]
        )
        if not np.array_equal(states, episode.states["obs"]):
            continue
        matches += 1
        assert np.array_equal(rewards.astype(np.float32), episode.steps["rewards"])
        assert success is episode.success
        ends = [False] * (episode.length - 1)
        assert episode.steps["terminated"].tolist() == [*ends, terminated]
        assert episode.steps["truncated"].tolist() == [*ends, not terminated]
    assert matches >= 1
