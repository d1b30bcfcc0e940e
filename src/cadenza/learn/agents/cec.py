"""CEC: an ego that trains beside itself in many environments.

One partner, the ego as it was after the last update, and no new loss: PPO with a memory. What makes
it general is the variety of environments: every copy draws options of the task anew for every
episode, never for a rollout, which would cut the variety of a batch by the number of copies.
Layouts that are held out are evaluated on by name, and never drawn in training.

Source:      arXiv:2504.12714 (cross-environment cooperation).
Randomness:  options depend on an episode's number alone, see the environments; the partner's draws
             as in `self_play`.
"""

from typing import Any, Never, Unpack, cast

from pydantic import Field

from cadenza.learn.agents.self_play import SelfPlayConfig, SelfPlayPPO, SelfPlaySettings
from cadenza.learn.agents.solo import SoloKeywords
from cadenza.learn.env.making import EnvLike
from cadenza.learn.settings import refuse_idle_settings

#: Ends of a range of numbers, or texts to choose from.
Range = tuple[float, float] | tuple[str, ...]


class CECConfig(SelfPlayConfig):
    """CEC.

    Attributes:
        ranges: Of options of the task, by name: both ends of numbers, or texts to choose from; for
            environments made by id. Others vary by themselves.
        layouts: Held out, to evaluate on, by name, as ranges of some of these options; what lies in
            all ranges of one is never drawn.
    """

    ranges: dict[str, Range] = Field(default={})
    layouts: dict[str, dict[str, Range]] = Field(default={})


class CECSettings(SelfPlaySettings, total=False):
    """Keywords of `CECConfig`."""

    ranges: dict[str, Range]
    layouts: dict[str, dict[str, Range]]


class _CECKeywords(SoloKeywords, CECSettings, total=False): ...


class CEC(SelfPlayPPO):
    """Cross-environment cooperation; arXiv:2504.12714, `CECConfig`.

    Raises:
        ConfigurationError: An option is unknown or out of range, or the environments of an id
            cannot leave the partner's seat open; options of others, or layouts alone, are given.
    """

    Config = CECConfig

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_CECKeywords]) -> None:
        super().__init__(env, *others, **settings)

    def _build(self) -> None:
        config, where = cast("CECConfig", self.config), "for environments that no id makes"
        if self.envs.id is None:
            refuse_idle_settings(config, "ranges", "layouts", where=where, owner=self.name)
        elif not config.ranges:
            refuse_idle_settings(config, "layouts", where="without ranges", owner=self.name)
        super()._build()

    def _task_options(self) -> dict[str, Any]:
        config = cast("CECConfig", self.config)
        vary = {"ranges": config.ranges, "held_out": config.layouts}
        return {"vary": vary} if config.ranges else {}
