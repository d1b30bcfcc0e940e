from cadenza.partners import make_phase0_draft_zoo


def test_draft_zoo_has_the_recorded_identities():
    zoo = make_phase0_draft_zoo()
    assert [(spec.class_name, spec.partner_id) for spec in zoo] == [
        ("scripted_heuristic", "73250184e1abaccc"),
        ("frozen_mappo", "4c58205caa5a23ab"),
        ("frozen_harl", "6f8ad68686328705"),
    ]
    assert [dict(spec.extra) for spec in zoo] == [
        {"uid": "fetch", "task": "stage0_smoke", "target_xy": "0.0,0.0", "action_dim": "2"},
        {"uid": "panda_wristcam", "task": "stage0_smoke"},
        {"uid": "allegro_hand_right", "task": "stage0_smoke", "checkpoint_tier": "50pct_reward"},
    ]
    zoo.clear()
    assert len(make_phase0_draft_zoo()) == 3
