"""The tasks that the field already knows: level-based foraging and Overcooked, from their packages.

Their rules are those of the packages, which the extras `foraging` and `teamwork` install;
`cadenza.envs.foraging` and `cadenza.envs.overcooked` say what an agent sees and gets. Both have
discrete actions: train with ppo, mappo or dqn.
"""

from typing import Any, Final

from cadenza.benchmark.tasks import (
    ANY_TASK_PARTNERS,
    EnvRequest,
    TaskSpec,
    number,
    register_task,
)
from cadenza.core.errors import ConfigurationError
from cadenza.envs.overcooked import HORIZON, LAYOUTS
from cadenza.partners.foraging import FORAGERS


def make_foraging_env(request: EnvRequest) -> Any:
    """Build the foraging task; see `EnvRequest`."""
    if request.render_mode is not None:
        raise ConfigurationError(
            f"foraging: expected render_mode None, got {request.render_mode!r}; it has no pictures."
        )
    options: Any = dict(request.options)
    settings = request.settings()
    if request.wants_batch:
        from cadenza.envs.foraging import VectorForaging

        return VectorForaging(request.num_envs, **options, **settings)
    from cadenza.envs.foraging import Foraging
    from cadenza.envs.parallel_task import ParallelTask

    return ParallelTask(Foraging(**options), **settings)


FORAGING: Final = register_task(
    TaskSpec(
        task_id="foraging",
        tier=0,
        title="Two foragers eat all food of a grid world.",
        summary=(
            "Level-based foraging: players beside food load it; it is eaten if the levels of "
            "those who load at once reach its own. Both get the share of food eaten, 1 in the end."
        ),
        env_factory="cadenza.benchmark.teamwork_tasks:make_foraging_env",
        episode_length=50,
        has_success=True,
        partners=FORAGERS,
        seen_partner="forager_lexicographic",
        supports_batches=True,
        extra="foraging",
        options={
            "size": number(8, 5, 19, "rows and columns"),
            "foods": number(3, 1, 4, "food in the beginning"),
            "levels": number(2, 1, 2, "highest level of a player; 1: no levels"),
            "coop": number(1, 0, 1, "1: all food needs both"),
        },
    )
)

OVERCOOKED: Final = tuple(
    register_task(
        TaskSpec(
            task_id=f"overcooked_{layout}",
            tier=0,
            title=f"Two cooks serve onion soups: {layout.replace('_', ' ')}.",
            summary=(
                "Overcooked: three onions into a pot, wait, fetch a dish, take the soup, serve it. "
                "Both get 20 per soup; starts are always the same."
            ),
            env_factory=f"cadenza.envs.overcooked:{layout}",
            interface="pettingzoo",
            episode_length=HORIZON,
            partners=ANY_TASK_PARTNERS,
            seen_partner="random_actions",
            extra="teamwork",
            options={"shaping": number(0, 0, 100, "share of the shaped rewards added, percent")},
        )
    )
    for layout in LAYOUTS
)
