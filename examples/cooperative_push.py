"""A team: two robots learn together to cover two landmarks; a minute.

    python examples/cooperative_push.py

Robots that stand still get about -66 per episode, robots that each drive to a landmark of their own
about -15. `perf/scores.py` trains MAPPO, HAPPO and HATD3 to the end.
"""

import cadenza
from cadenza.envs import VectorMPECooperativePushEnv


def pushes(count: int) -> VectorMPECooperativePushEnv:
    """Return ``count`` environments side by side."""
    return VectorMPECooperativePushEnv(count, root_seed=0, episode_length=50)


team = cadenza.HAPPO(
    pushes, num_envs=16, rollout_length=100, learning_rate=1e-3, gamma=0.95, max_action_std=1.0
)
team.learn(50_000)
print(team.evaluate(episodes=100))
