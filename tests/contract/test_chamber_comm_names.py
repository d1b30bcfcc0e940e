"""What code written for CHAMBER's comm calls: names, order of parameters and defaults stay."""

import pytest

import cadenza.comm
from tests.contract.promises import faults, promises

PROMISES = """
[cadenza.comm]
SCHEMA_VERSION
URLLC_3GPP_R17
AoIClock() .mark_fresh(uid) .tick(dt) .aoi(uid) .snapshot() .reset()
ChamberCommError
ChamberCommQPSaturationWarning
CommChannel .reset(*, seed=None) .encode(state) .decode(packet)
CommDegradationStats(dropped=0, delivered=0, latency_ticks=())
CommDegradationWrapper(channel, profile, *, tick_period_ms=1.0, root_seed=0) .stats
    .reset(*, seed=None) .encode(state) .decode(packet)
CommPacket
DegradationProfile(latency_mean_ms, latency_std_ms, drop_rate) .latency_mean_ms .latency_std_ms
    .drop_rate
FixedFormatCommChannel(*, schema_version=1) .reset(*, seed=None) .encode(state) .decode(packet)
LearnedOverlay(tensor=None) .tensor .set(tensor) .reset() .encode() .decode(packet_overlay)
Pose
TaskStatePredicate
saturation_guard(profile, qp_solve_fn=..., *, qp_time_budget_ms=1.0)
[cadenza.envs]
CommShapingWrapper(env, channel) .reset() .step(action)
"""


@pytest.mark.parametrize(
    ("module", "path", "parameters"),
    [pytest.param(*entry, id=f"{entry[0]}:{entry[1]}") for entry in promises(PROMISES)],
)
def test_promise_of_chamber_is_kept(module, path, parameters):
    assert faults(module, path, parameters) == []


def test_package_offers_every_name_of_the_table():
    promised = {path for module, path, _ in promises(PROMISES) if module == "cadenza.comm"}
    assert {path for path in promised if "." not in path} <= set(cadenza.comm.__all__)
    assert set(cadenza.comm.__all__) <= set(dir(cadenza.comm))


def test_wire_format_is_the_promised_one():
    assert cadenza.comm.SCHEMA_VERSION == 1
    assert cadenza.comm.Pose.__annotations__.keys() == {"xyz", "quat_wxyz"}
    predicate = cadenza.comm.TaskStatePredicate
    assert predicate.__optional_keys__ == {"grasp_side", "object_class", "contact_force"}
    packet = cadenza.comm.CommPacket
    assert packet.__required_keys__ == {
        *("schema_version", "pose", "task_state", "aoi", "learned_overlay")
    }
    profiles = {
        name: (p.latency_mean_ms, p.latency_std_ms, p.drop_rate)
        for name, p in cadenza.comm.URLLC_3GPP_R17.items()
    }
    assert profiles == {
        "ideal": (0.0, 0.0, 0.0),
        "urllc": (1.0, 0.0, 1e-6),
        "factory": (5.0, 0.1, 1e-4),
        "wifi": (10.0, 1.0, 1e-2),
        "lossy": (30.0, 5.0, 1e-2),
        "saturation": (100.0, 10.0, 1e-1),
    }
    assert issubclass(cadenza.comm.ChamberCommError, RuntimeError)
    assert issubclass(cadenza.comm.ChamberCommQPSaturationWarning, UserWarning)
