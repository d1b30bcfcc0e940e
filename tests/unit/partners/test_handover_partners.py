"""What the presenters of the handover do, on views whose answer is a hand calculation."""

import numpy as np
import pytest

from cadenza.partners.handover import VIEW_SCALE
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec


def presenter(name):
    return load_partner(PartnerSpec(f"handover_{name}", 0))


def traits(name):
    made = presenter(name)
    drawn = [made.draw(made.episode_stream(seed).default_rng()) for seed in range(200)]
    fields = ("station", "turn", "delay", "speed", "yields", "reacts")
    return {field: np.concatenate([getattr(one, field) for one in drawn]) for field in fields}


@pytest.mark.parametrize(
    ("own", "seen", "action"),
    [
        ({"delay": 0.5}, {"zone": (0.01, 0, 0), "time": 0.45}, [0] * 6),
        # 0.8 of the way over 2 cm, and of the turn over 0.2 rad; its station lies 1 cm beyond.
        ({"delay": 0.5}, {"zone": (0.01, 0, 0), "time": 0.5}, [0.4, 0, 0, 0, 0, 0]),
        ({"station": (0, 0.01, 0)}, {"zone": (0.01, 0, 0)}, [0.4, 0.4, 0, 0, 0, 0]),
        ({"turn": 0.05}, {"straight": (1, -1, 0.1)}, [0, 0, 0, 1, -1, 0.6]),
        ({"speed": 0.5}, {"zone": (0.3, 0, -0.4)}, [0.3, 0, -0.4, 0, 0, 0]),
        ({}, {"zone": (0.3, 0, -0.4)}, [0.6, 0, -0.8, 0, 0, 0]),
        ({}, {"zone": (0.3, 0, 0), "held": 0}, [0.5, 0, 0.5, 0, 0, 0]),  # has let go
        # Gives way by 0.3 of the gap to a hand nearer than 3 cm.
        ({"yields": True}, {"zone": (0.01, 0, 0), "gap": (0, 0.02, 0)}, [0, 0.24, 0, 0, 0, 0]),
        ({"yields": True}, {"zone": (0.01, 0, 0), "gap": (0, 0.04, 0)}, [0.4, 0, 0, 0, 0, 0]),
        # Waits for one nearer than 25 cm, then meets it as far as the zone goes, 3 cm.
        ({"reacts": True}, {"zone": (0.01, 0, 0), "gap": (0.26, 0, 0)}, [0] * 6),
        ({"reacts": True}, {"zone": (-0.02, 0, 0), "gap": (0.24, 0, 0)}, [0.4, 0, 0, 0, 0, 0]),
        ({"reacts": True}, {"zone": (-0.02, 0, 0), "gap": (0, 0, -0.01)}, [0, 0, -0.4, 0, 0, 0]),
    ],
)
def test_presenter_runs_to_its_station_gives_way_and_draws_back(own, seen, action):
    view = np.zeros((2, 18))
    for name, place in {"zone": slice(3), "straight": slice(3, 6), "gap": slice(6, 9)}.items():
        view[:, place] = seen.get(name, 0.0)
    view[:, 16:] = seen.get("held", 1), seen.get("time", 0.0)
    made = presenter("nominal")
    for name, value in own.items():
        getattr(made.traits(2), name)[:] = value
    assert made.actions(view / VIEW_SCALE) == pytest.approx(np.array([action] * 2), abs=1e-9)


def test_families_vary_as_their_cards_say():
    drawn = {name: traits(name) for name in ("presenter", "biased", "late", "yielding", "reactive")}
    for name, own in drawn.items():
        assert (own["yields"].all(), own["yields"].any()) == (name == "yielding",) * 2
        assert (own["reacts"].all(), own["reacts"].any()) == (name == "reactive",) * 2
        assert np.ptp(own["station"], axis=0) == pytest.approx([0.06] * 3, rel=0.1)
    ranges = {
        ("presenter", "delay"): (0.0, 1.0),
        ("late", "delay"): (1.0, 2.0),
        ("late", "speed"): (0.5, 0.7),
        ("biased", "turn"): (-np.pi / 4, np.pi / 4),
        ("nominal", "delay"): (0.0, 0.0),
        ("nominal", "speed"): (1.0, 1.0),
    }
    for (name, field), ends in ranges.items():
        values = traits(name)[field]
        assert (values.min(), values.max()) == pytest.approx(ends, abs=0.05)
    assert np.abs(drawn["biased"]["turn"]).min() == pytest.approx(np.pi / 12, abs=0.02)
