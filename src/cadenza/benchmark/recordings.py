"""Recorded episodes for a report: two starts beside every partner, under every condition.

Chosen:  from the episodes of one policy, never by hand; `PICKS` says how. Each is played again from
         its start, which gives the same episode.
Shown:   where the environment tells the robots' positions and radii; its obstacles are drawn too.
Units:   m, s.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from cadenza.benchmark.cells import Cell, CellRunner, EvaluationPlan
from cadenza.benchmark.evaluation_run import EvaluationOutcome
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import atomic_write_text
from cadenza.evaluation.report.view import RECORDINGS_NAME, Recordings, Rollout
from cadenza.evaluation.results import EpisodeResult
from cadenza.safety.maps import describe_map

#: How recorded starts are chosen, in the reader's words.
PICKS: Final = {
    "typical": "A start that ends, under every condition, in the way that is most common with this "
    "partner; of these, the one whose episode under the first condition has median length.",
    "telling": "Selected for its outcome, so not typical: the first start where the condition "
    "decides (a contact under one, success under the other); failing that, the first with a "
    "contact, the first with two different endings, or the first of all.",
}

#: Episodes of every start, one per condition, by (seed, episode).
_Starts: TypeAlias = dict[tuple[int, int], list[EpisodeResult]]


def write_recordings(outcome: EvaluationOutcome, *, out: Path, artifacts_root: Path) -> None:
    """Record the first policy of a whole evaluation into its folder, for `cadenza report`.

    Raises:
        ConfigurationError: As `record_starts`.
        StorageError: The file system refused.
    """
    policy, episodes = next(iter(outcome.episodes.items()))
    found = record_starts(outcome.plan, policy, episodes, artifacts_root=artifacts_root)
    atomic_write_text(out / RECORDINGS_NAME, found.model_dump_json() + "\n")


def record_starts(
    plan: EvaluationPlan, policy: str, episodes: Sequence[EpisodeResult], *, artifacts_root: Path
) -> Recordings:
    """Play a typical and a telling start of a policy again, per partner and condition.

    Args:
        plan: What was evaluated.
        policy: Whose episodes are recorded.
        episodes: All of them.
        artifacts_root: Where its weights are.

    Raises:
        ConfigurationError: The environment does not tell positions and radii.
        CadenzaError: As an episode raises.
    """
    runner = CellRunner(plan=plan, artifacts_root=artifacts_root)
    rollouts = tuple(_rollouts(plan, policy, episodes, runner))
    radii = rollouts[0].radii
    partners = [radius for uid, radius in radii.items() if uid != plan.env.agent_uids[0]]
    contact = {radii[plan.env.agent_uids[0]] + radius for radius in partners}
    return Recordings(
        policy_id=policy,
        picks=PICKS,
        contact_distance_m=contact.pop() if len(contact) == 1 else None,
        rollouts=rollouts,
    )


def _rollouts(
    plan: EvaluationPlan, policy: str, episodes: Sequence[EpisodeResult], runner: CellRunner
) -> Iterator[Rollout]:
    cells = {(c.partner, c.condition, c.seed): c for c in plan.cells.values() if c.policy == policy}
    for name in (entry.name for entry in plan.partners):
        starts = _starts(plan, episodes, name)
        for pick, choose in (("typical", _typical_start), ("telling", _telling_start)):
            seed, episode = start = choose(starts)
            alike = sum(_endings(e) == _endings(starts[start]) for e in starts.values())
            for condition in plan.conditions:
                cell = cells[name, condition.name, seed]
                yield _replay(runner, cell, episode, pick, f"{alike} of {len(starts)} starts")


def _starts(plan: EvaluationPlan, episodes: Sequence[EpisodeResult], partner: str) -> _Starts:
    """Return the episodes with one partner by (seed, episode), in order of conditions."""
    starts: _Starts = {}
    offset = [entry.name for entry in plan.partners].index(partner) * plan.episodes_per_seed
    order = [condition.name for condition in plan.conditions]
    for result in sorted(episodes, key=lambda result: order.index(result.condition or "")):
        if result.partner == partner:
            starts.setdefault((result.seed, result.episode_idx - offset), []).append(result)
    return starts


def _endings(episodes: Sequence[EpisodeResult]) -> tuple[str, ...]:
    """Return how the episodes of one start ended."""
    return tuple(
        "contact" if e.contact or e.wall_contact else "goal" if e.success else "time-out"
        for e in episodes
    )


def _typical_start(starts: _Starts) -> tuple[int, int]:
    """Return the start of median length, under the first condition, among the most common."""
    common, _ = Counter(map(_endings, starts.values())).most_common(1)[0]
    alike = [start for start in starts if _endings(starts[start]) == common]
    alike.sort(key=lambda start: starts[start][0].n_steps or 0)
    return alike[(len(alike) - 1) // 2]


def _telling_start(starts: _Starts) -> tuple[int, int]:
    """Return the first start of the most telling kind."""

    def interest(start: tuple[int, int]) -> tuple[bool, bool, bool]:
        endings = set(_endings(starts[start]))
        return {"contact", "goal"} <= endings, "contact" in endings, len(endings) > 1

    return max(starts, key=interest)  # the first among equals


def _replay(runner: CellRunner, cell: Cell, episode: int, pick: str, alike: str) -> Rollout:
    result, trajectory = runner.replay(cell, episode)
    if not trajectory.frames or not trajectory.radii:
        raise ConfigurationError(
            "recordings: expected an environment that tells its robots' positions and radii "
            "(robot_positions and build_agent_snapshots, or build_agent_batch), got one that does "
            "not; evaluate it without recordings."
        )
    return Rollout(
        condition_id=cell.condition,
        partner_id=cell.partner,
        seed=cell.seed,
        initial_state_seed=result.initial_state_seed,
        control_timestep_s=trajectory.control_timestep_s,
        frames=tuple(
            {uid: (float(p[0]), float(p[1])) for uid, p in frame.items()}
            for frame in trajectory.frames
        ),
        goals={uid: (float(p[0]), float(p[1])) for uid, p in trajectory.goals.items()},
        radii=trajectory.radii,
        contact_index=trajectory.contact_index,
        success=result.success,
        pick=pick,
        alike=alike,
        interventions=trajectory.interventions,
        obstacles=describe_map(trajectory.obstacles),
    )
