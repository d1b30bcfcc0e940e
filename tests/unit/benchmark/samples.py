"""A small plan and made-up episodes for it, shared by tests of plans, cells and bundles."""

from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.bundle import BundleRequest
from cadenza.benchmark.cells import (
    Cell,
    ConditionEntry,
    EvaluationPlan,
    PartnerEntry,
    PolicyEntry,
    initial_state_seed,
)
from cadenza.evaluation.results import EpisodeResult, PlatformFingerprint, SafetyRecord
from cadenza.evaluation.summary import SummarySettings

WEIGHTS = "ab" * 32


def make_plan(**changes):
    """Two policies, partners, conditions and seeds; 3 episodes in blocks of 2: 32 cells."""
    fields = {
        "task_version": 1,
        "env": EnvConfig(task="crossing", episode_length=7),
        "policies": (
            PolicyEntry(name="ego", source="local://artifacts/x.pt", weights_sha256=WEIGHTS),
            PolicyEntry(name="zero", source="zero"),
        ),
        "partners": (
            PartnerEntry(
                name="seeker", partner=PartnerConfig(class_name="crossing_goal_seeker"), seen=True
            ),
            PartnerEntry(name="chaser", partner=PartnerConfig(class_name="crossing_chaser")),
        ),
        "conditions": (
            ConditionEntry(name="filter_on", safety=SafetyConfig(enabled=True)),
            ConditionEntry(name="filter_off", safety=SafetyConfig(enabled=False)),
        ),
        "seeds": (0, 5),
        "episodes_per_seed": 3,
        "block_size": 2,
        "code_sha256": "cd" * 32,
        "package_version": "0.1.0",
    }
    fields |= changes
    lanes = {condition.name: "lanes/1" for condition in fields["conditions"]}
    return EvaluationPlan.model_validate({"engine": {"conditions": lanes}} | fields)


def make_safety_record(i: int) -> SafetyRecord:
    """Return a record of an episode of 100 + i steps."""
    return SafetyRecord(
        control_timestep_s=0.05,
        overlapping_steps=i,
        accel_checks=99 + i,
        accel_breaches=2 * i,
        lambda_mean=-0.25 * i,
        lambda_var=0.5,
        slack_peak=0.125 * i,
        brake_reasons={"ttc": 2, "contact": 1} if i == 2 else {},
    )


def make_cell_episodes(plan: EvaluationPlan, cell: Cell):
    """Return plausible episodes of ``cell``: contacts happen without filter only."""
    episodes = []
    for i in range(cell.first_episode, cell.first_episode + cell.n_episodes):
        filtered = plan.condition(cell.condition).safety.enabled
        contact = not filtered and (i + cell.seed) % 2 == 0
        episodes.append(
            EpisodeResult(
                seed=cell.seed,
                episode_idx=plan.episode_idx(cell, i),
                initial_state_seed=initial_state_seed(cell.seed, i),
                success=not contact and i != 1,
                condition=cell.condition,
                partner=cell.partner,
                n_steps=100 + i,
                truncated=False,
                episode_return=1.5 - i,
                contact=contact,
                min_distance_m=0.41 if not contact else 0.39,
                interventions=3 if filtered else None,
                intervention_mean=0.5 if filtered else None,
                intervention_peak=1.0 + i if filtered else None,
                violating_steps=i if filtered else None,
                infeasible_steps=i // 2 if filtered else None,
                uncertified_steps=i if filtered else None,
                fallback_fired=2 if filtered and i == 2 else 0,
                safety=make_safety_record(i) if filtered else None,
                metadata={"policy": cell.policy},
            )
        )
    return episodes


def make_request(plan: EvaluationPlan | None = None, **changes):
    """Return a complete bundle request for policy ``ego`` of ``plan``."""
    plan = plan or make_plan()
    episodes = [
        episode
        for cell in plan.cells.values()
        if cell.policy == "ego"
        for episode in make_cell_episodes(plan, cell)
    ]
    fields = {
        "plan": plan,
        "policy": "ego",
        "episodes": episodes,
        "provenance": {
            "git_sha": "1" * 40,
            "dirty": False,
            "diff_sha256": None,
            "lock_sha256": "2" * 64,
            "platform": PlatformFingerprint(
                os="Linux", python="3.11", numpy="2", torch="2", device="cpu"
            ),
        },
        "repro_command": "cadenza eval run eval.yaml",
        "settings": SummarySettings(
            headline_condition="filter_on", comparison=("filter_on", "filter_off")
        ),
    }
    return BundleRequest(**(fields | changes))


def make_key(path):
    """Write an Ed25519 key as ``ssh-keygen`` does and return its public line."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, openssh = Ed25519PrivateKey.generate(), form.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(form.Encoding.PEM, openssh, form.NoEncryption()))
    line = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return line.decode() + "\n"
