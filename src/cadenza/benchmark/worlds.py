"""Everything that takes part in an episode, built together and closed together."""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

from cadenza.aht.config_models import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.assumption_monitor import AssumptionMonitor
from cadenza.benchmark.builders import build_env, build_partner, build_safety_driver
from cadenza.benchmark.ego_link import EgoLink, LinkConfig
from cadenza.benchmark.episodes import EpisodeWorld
from cadenza.benchmark.policies import EgoPolicy, EgoSeat, ego_seat
from cadenza.benchmark.tasks import get_task
from cadenza.safety.runtime.env_hooks import EnvHooks


@contextmanager
def open_world(
    *,
    env: EnvConfig,
    partner: PartnerConfig,
    safety: SafetyConfig,
    root_seed: int,
    make_policy: Callable[[EgoSeat], EgoPolicy],
    link: LinkConfig | None = None,
    weights_sha256: str | None = None,
) -> Generator[EpisodeWorld]:
    """Yield a world whose safety driver watches the very environment that is stepped.

    Args:
        env: Task and its settings; one environment, not a batch.
        partner: The partner.
        safety: Filter settings; disabled gives a world without filter.
        root_seed: Seed that scopes every episode of the environment.
        make_policy: Builds the ego policy for its seat.
        link: What the ego hears of the others; None lets it see the truth.
        weights_sha256: Digest the partner's weights must have; None takes any.
    """
    live_env = build_env(env, root_seed=root_seed, partner=partner)
    with closing(live_env):
        seat = ego_seat(live_env, live_env.ego_uid)
        if partner.extra.get("uid") not in live_env.agent_uids:  # robots with names of their own
            seated = {**partner.extra, "uid": live_env.partner_uid}
            partner = partner.model_copy(update={"extra": seated})
        ego_link = None if link is None else EgoLink(live_env, link)
        yield EpisodeWorld(
            env=live_env,
            seat=seat,
            partner_uid=live_env.partner_uid,
            policy=make_policy(seat),
            partner=build_partner(partner, env=live_env, weights_sha256=weights_sha256),
            guard=build_safety_driver(live_env, safety, link=ego_link),
            has_success=get_task(env.task).has_success,
            monitor=AssumptionMonitor(EnvHooks.of(live_env), ego_uid=live_env.ego_uid)
            if safety.enabled
            else None,
            link=ego_link,
        )
