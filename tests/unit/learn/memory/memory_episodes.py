"""Agents in a counting world, for tests of proxies and tables.

Step s of agent a has the observation 100 a + s, the action 100 a + s + 0.5, and earns the reward
s + 1 for it, which the next observation brings.
"""

import numpy as np

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, DictResponse, EpisodeState, MetaData
from cadenza.learn.memory.builder import DictObsMemoryTable, DictObsNStepMemoryTable

SPACES = MDPSpace(
    rewards=BoxSpace(np.float32, (1,)),
    actions=BoxSpace(np.float32, (2,)),
    state=DictSpace({"obs": BoxSpace(np.float32, (3,))}),
)
TABLES = {"one_step": DictObsMemoryTable, "n_step": DictObsNStepMemoryTable}


def table(kind="one_step", *, terminal=True, maxlen=1000, **options):
    return TABLES[kind](
        spaces=SPACES, use_terminal_column=terminal, maxlen=maxlen, device="cpu", **options
    )


def observation(agent, step, state=EpisodeState.RUNNING, metadata: MetaData | None = None):
    reward = None if state is EpisodeState.INITIAL else float(step)
    return DictObservation(
        rewards={"reward": reward},
        episode_state=state,
        array_data={"obs": np.full(3, 100 * agent + step, np.float32)},
        metadata=metadata,
    )


def response(agent, step):
    return DictResponse({"actions": np.full(2, 100 * agent + step + 0.5, np.float32)}, {})


def play(memory, agent, steps, ending=EpisodeState.TERMINAL):
    """Let one agent live for ``steps`` actions; without an ending its episode stays open."""
    for step in range(steps):
        state = EpisodeState.INITIAL if step == 0 else EpisodeState.RUNNING
        memory.add({agent: observation(agent, step, state)}, {agent: response(agent, step)})
    if ending is not None:
        memory.add({agent: observation(agent, steps, ending)}, {})
