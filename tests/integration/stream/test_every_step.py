"""Whatever environments do, each of their steps is in the stream once, and parts are linked."""

from typing import Any

import numpy as np
import pytest
import torch

from cadenza.stream import OnlineDataEngine, OnlineDataEngineCfg
from cadenza.stream.bridges.episodes import Episode, EpisodeReader
from tests.stream_engines import HALF, WORLDS, eventually
from tests.stream_worlds import MEASURED

#: Steps of a slot, and of the episodes of each environment.
STEPS, LENGTHS = 6, (4, 17, 9)
WANTED = 60


def config(made: str, mode: str) -> OnlineDataEngineCfg:
    """Return settings of a buffer that is filled again when it was read."""
    gym: dict[str, Any] = {"factory": f"{WORLDS}:measured", "kwargs": {"mode": mode}}
    if made == "id":
        autoreset = {"SAME_STEP": "SameStep", "NEXT_STEP": "NextStep"}[mode]
        vector = {"autoreset_mode": autoreset}
        gym = {"id": f"{WORLDS}:{MEASURED}", "kwargs": {"vector_kwargs": vector}}
    gym["kwargs"]["lengths"] = LENGTHS
    gym["num_envs"] = len(LENGTHS)
    return OnlineDataEngineCfg(
        buffer_size=7, max_episode_steps=STEPS, gym_config=gym, policy=HALF, draw_timeout=800.0
    )


@pytest.mark.parametrize(("made", "mode"), [("factory", "SAME_STEP"), ("id", "NEXT_STEP")])
def test_every_step_of_every_environment_is_recorded_once(made, mode) -> None:
    episodes: list[Episode] = []
    with OnlineDataEngine(config(made, mode)) as engine:
        reader = EpisodeReader(engine.store)

        def read() -> bool:
            episodes.extend(reader.take())
            return len(episodes) >= WANTED

        eventually(read, "episodes come")
        assert reader.lost == 0
    ends = []
    for row in range(len(LENGTHS)):
        own = [episode for episode in episodes if episode.states["obs"][0, 0] == row]
        stepped = np.concatenate([episode.states["obs"][:-1, 1] for episode in own])
        np.testing.assert_array_equal(stepped, np.arange(len(stepped)))
        ends.append(len(own))
    if made == "id":  # none is longer than a slot: they take turns in each fill of 7
        assert max(ends) - min(ends) <= 3


def test_parts_of_long_episodes_are_linked() -> None:
    cfg = config("factory", "SAME_STEP")
    with OnlineDataEngine(cfg) as engine:
        parts = {(e.episode_id, e.part): e for e in EpisodeReader(engine.store).take()}
        keys = ["obs", "next.obs", "episode_id", "part", "episode_step"]
        batch = engine.sample_batch(200, 3, select=keys)
    step = batch["obs"][..., 2].long()
    assert torch.equal(batch["episode_step"], step)
    assert torch.equal(batch["part"], step // STEPS)
    assert (batch["part"] == batch["part"][:, :1]).all()
    linked = [(before, parts[i, k + 1]) for (i, k), before in parts.items() if (i, k + 1) in parts]
    assert linked
    for before, after in linked:
        np.testing.assert_array_equal(before.states["obs"][-1], after.states["obs"][0])
        assert before.length == STEPS
        assert before.steps["truncated"][-1]
        assert not before.is_terminal
