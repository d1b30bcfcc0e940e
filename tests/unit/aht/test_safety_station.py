"""What the safety filter is told about who plays."""

import numpy as np

from cadenza.aht.safety_telemetry import SafetyStation
from cadenza.partners import PartnerMixture, PartnerSpec, load_partner
from tests.unit.aht.parts import HalvingBatchDriver, HalvingDriver, NoisyPartner, config_in


def mixture():
    names = ("crossing_goal_seeker", "crossing_stationary")
    return PartnerMixture([load_partner(PartnerSpec(name, 0)) for name in names])


def scene(*shape):
    return {"agent": {"partner": {"state": np.full((*shape, 10), 0.3, dtype=np.float32)}}}


def station_of(partner, folder, rows):
    """Return a station of ``rows`` environments and what its driver is told."""
    driver = HalvingDriver(None) if rows == 1 else HalvingBatchDriver(None, num_envs=rows)
    env = {"task": "noisy_point", "num_envs": rows}
    station = SafetyStation(driver, config_in(folder, env=env), partner)
    driver.begin_run(0)
    driver.begin_run(0)
    driver.calls.clear()
    return station, driver.calls


def test_station_of_one_environment_names_the_drawn_partner(tmp_path):
    mixed = mixture()
    station, told = station_of(mixed, tmp_path, 1)
    mixed.reset(seed=0)
    station.filter(np.zeros(1, np.float32))  # nobody has acted, so nobody is known
    mixed.act(scene())
    station.filter(np.zeros(1, np.float32))
    assert told == [None, *mixed.playing_ids]
    assert mixed.playing_ids[0] in {one.spec.partner_id for one in mixed.members}


def test_station_of_a_batch_names_the_partner_of_each_row(tmp_path):
    mixed = mixture()
    station, told = station_of(mixed, tmp_path, 3)
    mixed.reset(seed=0)
    station.filter(np.zeros((3, 1), np.float32))
    mixed.reset_row(0, seed=1)
    station.filter(np.zeros((3, 1), np.float32))
    first = mixed.playing_ids
    mixed.act(scene(3))
    station.filter(np.zeros((3, 1), np.float32))
    assert told == [[None] * 3, [*first, None, None], mixed.playing_ids]
    assert len(mixed.playing_ids) == 3


def test_station_names_the_only_partner_if_its_spec_does(tmp_path):
    alone = load_partner(PartnerSpec("crossing_stationary", 0))
    for partner, name in (
        (alone, alone.spec.partner_id),
        (NoisyPartner(), "partner-0001"),
        (NoisyPartner(None), None),
    ):
        for rows in (1, 2):
            station, told = station_of(partner, tmp_path, rows)
            station.filter(np.zeros((rows, 1) if rows > 1 else 1, np.float32))
            assert told == [name]
