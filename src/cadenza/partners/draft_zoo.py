"""The draft zoo: one scripted and two learned partners, with their fixed identities.

``cadenza partners train-draft-zoo`` trains the two checkpoints it names.
"""

from cadenza.partners.spec import PartnerSpec


def make_phase0_draft_zoo() -> list[PartnerSpec]:
    """Return the specs of the draft zoo, scripted, MAPPO and HAPPO; a new list on every call."""
    return [
        PartnerSpec(
            class_name="scripted_heuristic",
            seed=0,
            extra={
                "uid": "fetch",
                "task": "stage0_smoke",
                "target_xy": "0.0,0.0",
                "action_dim": "2",
            },
        ),
        PartnerSpec(
            class_name="frozen_mappo",
            seed=42,
            checkpoint_step=100_000,
            weights_uri="local://artifacts/mappo_seed42_step100k.pt",
            extra={"uid": "panda_wristcam", "task": "stage0_smoke"},
        ),
        PartnerSpec(
            class_name="frozen_harl",
            seed=7,
            checkpoint_step=50_000,
            weights_uri="local://artifacts/happo_seed7_step50k.pt",
            extra={
                "uid": "allegro_hand_right",
                "task": "stage0_smoke",
                "checkpoint_tier": "50pct_reward",
            },
        ),
    ]
