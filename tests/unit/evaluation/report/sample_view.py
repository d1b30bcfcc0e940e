"""A report view with made-up but plausible episodes of five partners under two conditions."""

import math
from dataclasses import replace

import numpy as np

from cadenza.core.tables import Table
from cadenza.evaluation.report.view import (
    Check,
    ConditionView,
    EvaluationPoint,
    Fact,
    LearningCurve,
    PartnerView,
    ReportView,
    Rollout,
    Statement,
)
from cadenza.evaluation.results import EpisodeResult

CONTACT_M = 0.4
STEP_S = 0.05

#: Partner: seen, leaves a way, success with and without filter, contact without filter.
CAST = {
    "goal_seeker": ("Goal-seeker", True, True, 0.975, 0.80, 0.18),
    "stationary": ("Stationary", False, True, 0.94, 0.93, 0.05),
    "wanderer": ("Wanderer", False, True, 0.90, 0.74, 0.23),
    "late_braker": ("Late braker", False, True, 0.92, 0.66, 0.31),
    "chaser": ("Chaser", False, False, 0.41, 0.02, 0.97),
}


def sample_view(*, seeds: int = 10, episodes: int = 20, rollouts: bool = True) -> ReportView:
    """Return a complete view; smaller counts make smaller pages."""
    return ReportView(
        title="Does the ego cross safely with strangers?",
        subtitle="An ego trained with one partner and guarded by a safety filter, evaluated with "
        "five partners, four of which it had never met.",
        task="crossing@v1",
        success_meaning="the ego reached its goal in time without touching anyone",
        contact_distance_m=CONTACT_M,
        statements=(
            Statement(
                kind="measured",
                text="Whether the ego reaches its goal without contact, with five partners.",
            ),
            Statement(kind="not_measured", text="Real robots: positions here are exact."),
            Statement(
                kind="caution",
                text="The chaser leaves no way on purpose; its success rate is not a target.",
            ),
        ),
        provenance=(
            Fact(label="Commit", value="2e4032a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5", code=True),
        ),
        verification=(
            Check(name="bundle:schema", ok=True, detail="result_bundle, version 3"),
            Check(name="manifest:membership", ok=True, detail="14 files"),
        ),
        conditions=(
            ConditionView(
                condition_id="filter_on",
                label="with filter",
                filtered=True,
                description="The safety filter may change each action as little as possible.",
            ),
            ConditionView(
                condition_id="filter_off",
                label="without filter",
                filtered=False,
                description="The same policy, its actions untouched.",
            ),
        ),
        partners=tuple(
            PartnerView(
                partner_id=partner,
                label=c[0],
                seen=c[1],
                leaves_way=c[2],
                description=f"{c[0]} drives as its name says.",
            )
            for partner, c in CAST.items()
        ),
        episodes=sample_episodes(seeds=seeds, episodes=episodes),
        learning=(sample_learning(),),
        rollouts=sample_rollouts() if rollouts else (),
        control_timestep_s=STEP_S,
        picks={
            "typical": "The start of median length among those that end alike.",
            "telling": "Chosen for a contact without the filter where there is one.",
        },
        tables=(
            Table(
                title="Filter settings",
                columns=("Setting", "Value"),
                rows=(("Barrier rate", "2.0 1/s"), ("Margin", "0.00 m")),
                caption="Set before the evaluation.",
            ),
        ),
        repro_command="cadenza quickstart --seed 0 --out runs/quickstart",
    )


def sample_episodes(*, seeds: int, episodes: int) -> tuple[EpisodeResult, ...]:
    """Return episodes whose outcomes follow `CAST`, paired by initial state."""
    rng = np.random.default_rng(7)
    results: list[EpisodeResult] = []
    for partner, (_, _, _, with_filter, without, contact_rate) in CAST.items():
        for seed in range(seeds):
            for index in range(episodes):
                luck = float(rng.random())
                for condition, rate in (("filter_on", with_filter), ("filter_off", without)):
                    filtered = condition == "filter_on"
                    contact = not filtered and luck > 1.0 - contact_rate
                    success = luck < rate and not contact
                    clearance = float(rng.gamma(2.2, 0.16))
                    distance = (
                        CONTACT_M * (0.99 - 0.04 * luck)
                        if contact
                        else CONTACT_M + 0.012 + clearance
                    )
                    steps = int(rng.integers(70, 200))
                    acted = int(steps * min(0.9, 0.08 + 0.5 * contact_rate * float(rng.random())))
                    results.append(
                        EpisodeResult(
                            seed=seed,
                            episode_idx=index,
                            initial_state_seed=1000 * seed + index,
                            success=success,
                            condition=condition,
                            partner=partner,
                            n_steps=steps,
                            truncated=not success and not contact,
                            episode_return=round(
                                8.0 * success - 5.0 * contact + float(rng.normal()), 4
                            ),
                            contact=contact,
                            min_distance_m=round(distance, 4),
                            goal_distance_m=0.1 if success else 1.5,
                            constraint_violation_peak=0.0 if filtered else round(0.3 * contact, 3),
                            violating_steps=0 if filtered else 3 * contact,
                            interventions=acted if filtered else None,
                            intervention_mean=0.61 if filtered and acted else None,
                            intervention_peak=2.31 if filtered and acted else None,
                            infeasible_steps=0 if filtered else None,
                            uncertified_steps=0 if filtered else None,
                            fallback_fired=int(filtered and partner == "chaser" and luck > 0.9),
                        )
                    )
    return tuple(results)


def sample_learning() -> LearningCurve:
    """Return a curve that rises and levels off."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(60, 201, size=800)
    steps = np.cumsum(lengths)
    level = 7.5 - 9.0 * np.exp(-steps / 22_000)
    returns = level + rng.normal(0, 1.4, size=steps.size) - 5.0 * (rng.random(steps.size) < 0.12)
    return LearningCurve(
        label="Seed 0, partner goal-seeker, filter on",
        steps=tuple(int(s) for s in steps),
        returns=tuple(round(float(r), 3) for r in returns),
        window=50,
        evaluations=tuple(
            EvaluationPoint(
                step=step,
                n_episodes=40,
                n_success=round(40 * (1 - math.exp(-step / 18_000)) * 0.98),
                mean_return=7.5 - 9.0 * math.exp(-step / 22_000) + 0.4,
            )
            for step in range(10_000, 110_001, 10_000)
        ),
    )


def sample_rollouts() -> tuple[Rollout, ...]:
    """Return two short runs per partner and condition."""
    return tuple(
        _rollout(partner, condition, pick, angle + 5 * (pick == "typical"))
        for pick in ("typical", "telling")
        for angle, partner in enumerate(CAST)
        for condition in ("filter_on", "filter_off")
    )


def _rollout(partner: str, condition: str, pick: str, turn: int) -> Rollout:
    """Return a run past a disc in the way; the ego swerves only with the filter."""
    filtered = condition == "filter_on"
    angle = 0.4 + 1.1 * turn
    ahead = np.array([math.cos(angle), math.sin(angle)])
    aside = np.array([-ahead[1], ahead[0]])
    share = np.linspace(0.0, 1.0, 90 + turn)
    swerve = (0.5 + 0.1 * turn) * np.sin(math.pi * share) if filtered else np.zeros_like(share)
    ego = np.outer(4.0 * share - 2.0, ahead) + np.outer(swerve, aside)
    other = np.outer(0.3 * share - 0.25, aside)
    touching = np.flatnonzero(np.linalg.norm(ego - other, axis=1) < CONTACT_M)
    contact = int(touching[0]) if touching.size else None
    length = len(share) if contact is None else contact + 1
    return Rollout(
        condition_id=condition,
        partner_id=partner,
        seed=0,
        initial_state_seed=turn,
        control_timestep_s=STEP_S,
        frames=tuple({"ego": _point(ego[i]), "partner": _point(other[i])} for i in range(length)),
        goals={"ego": _point(2.0 * ahead), "partner": _point(aside)},
        radii={"ego": 0.2, "partner": 0.2},
        contact_index=contact,
        success=contact is None,
        pick=pick,
        alike="3 of 12 starts" if pick == "typical" else "1 of 12 starts",
        interventions=tuple(map(float, swerve[:length])) if filtered else (),
    )


def _point(vector: np.ndarray) -> tuple[float, float]:
    return float(vector[0]), float(vector[1])


def hostile_view() -> ReportView:
    """Return a view whose every text tries to leave its place in the page."""
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    view = sample_view(seeds=2, episodes=2)
    return replace(
        view,
        title=attack,
        subtitle=attack,
        task=attack,
        success_meaning=attack,
        repro_command=attack,
        picks={attack: attack},
        rollouts=tuple(
            replace(r, pick=attack, alike=attack) for r in view.rollouts if r.pick == "telling"
        ),
        statements=(Statement(kind="measured", text=attack),),
        provenance=(Fact(label=attack, value=attack, code=True),),
        verification=(Check(name=attack, ok=False, detail=attack),),
        partners=tuple(
            replace(p, label=attack + p.partner_id, description=attack) for p in view.partners
        ),
        conditions=tuple(replace(c, label=attack + c.condition_id) for c in view.conditions),
        tables=(Table(title=attack, columns=(attack,), rows=((attack,),), caption=attack),),
    )
