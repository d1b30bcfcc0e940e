"""Best-response proximity: a share of the way from a random ego to the best response."""

import pytest

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.evaluation.best_responses import (
    MEAN,
    NOT_APART,
    NOT_REACHED,
    WORST,
    WORST_FAMILY,
    load_best_responses,
    proximities,
    store_best_responses,
)
from cadenza.evaluation.results import EpisodeResult

FILE = """\
task: push@v1
partners:
  near: {value: 10.0, random: 2.0, trained: "PPO, 1M steps, seed 0"}
  far: {value: 0.0, random: -8.0, low: -0.5, high: 0.5, trained: PPO}
  weak: {value: 3.0, trained: PPO}
  absent: {value: 1.0, trained: PPO}
"""
#: Returns beside each partner, a method's seeds 0 and 1 in turn.
RETURNS = {
    "ours": {"near": (7.0, 9.0), "far": (-2.0, -2.0), "weak": (4.0, 4.0)},
    "theirs": {"near": (2.0, 2.5), "far": (-4.0, -8.0), "weak": (0.0, 1.0)},
}
FAMILIES = {"near": "a", "far": "b", "weak": "b"}


@pytest.fixture
def best(tmp_path):
    (tmp_path / "best.yaml").write_text(FILE)
    return load_best_responses(tmp_path / "best.yaml")


def played(returns):
    return {
        method: [
            EpisodeResult(
                seed=seed, episode_idx=k, initial_state_seed=k, success=False, partner=partner,
                episode_return=value + (0.1, -0.1)[k],
            )
            for partner, values in partners.items()
            for seed, value in enumerate(values)
            for k in range(2)
        ]
        for method, partners in returns.items()
    }  # fmt: skip


def test_returns_are_measured_from_a_random_ego_to_the_best_response(best):
    ours = proximities(played(RETURNS), best, FAMILIES)["ours"]
    near = ours["near"]
    half = 12.7062 * (0.875 - 0.625) / 2.0  # t(0.975, 1) s / sqrt(2): seed shares 5 / 8, 7 / 8
    assert (near.value, near.low, near.high) == pytest.approx((0.75, 0.75 - half, 1.0), abs=1e-4)
    assert near.estimator == "brprox-mean/cluster/student-t/v1"
    assert ours["far"].value == pytest.approx(6.0 / 8.0)
    assert ours[MEAN].value == pytest.approx(0.75)
    assert "absent" not in ours  # nobody played beside it


def test_partner_whose_best_response_is_beaten_counts_for_nobody(best):
    found = proximities(played(RETURNS), best, FAMILIES)
    for method in found.values():
        assert method["weak"].value is None
        assert method["weak"].undefined_reason == NOT_REACHED
    theirs = found["theirs"]
    assert theirs[WORST].value == theirs[WORST_FAMILY].value == pytest.approx(0.03125)
    assert theirs[MEAN].value == pytest.approx((0.03125 + 0.25) / 2)
    for method in found.values():
        ends = [(e.value, e.low, e.high) for e in method.values()]
        assert all(end <= 1.0 for each in ends for end in each if end is not None)
    only = {m: {"weak": own["weak"]} for m, own in RETURNS.items()}
    alone = proximities(played(only), best, FAMILIES)["ours"]
    assert list(alone) == ["weak"]


def test_partner_whose_best_response_may_be_chance_counts_for_nobody(best):
    partners = {name: best.partners[name] for name in ("near", "far")}
    # far: the response is at least -0.5, the random ego at most -0.4
    partners["far"] = partners["far"].model_copy(update={"random_high": -0.4})
    vague = best.model_copy(update={"partners": partners})
    ours = proximities(played(RETURNS), vague, FAMILIES)["ours"]
    assert (ours["far"].value, ours["far"].undefined_reason) == (None, NOT_APART)
    assert ours[MEAN].value == ours["near"].value


def test_sealed_file_is_refused_when_it_was_altered(best, tmp_path):
    path = tmp_path / "best.json"
    store_best_responses(path, best)
    assert load_best_responses(path) == best
    path.write_text(path.read_text().replace("10.0", "11.0"))
    with pytest.raises(IntegrityError, match="the file was changed"):
        load_best_responses(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("value: 10.0, random: 2.0|value: 2.0, random: 2.0", "expected more than a random ego"),
        ("task: push@v1|tusk: push@v1", "task"),
        ("value: 3.0,|value: much,", r"partners\.weak\.value"),
        (f"{FILE}|a remark", "expected best responses, got another document; `cadenza zoo"),
    ],
)
def test_file_of_another_shape_is_refused(tmp_path, change, told):
    path = tmp_path / "best.yaml"
    path.write_text(FILE.replace(*change.split("|")))
    with pytest.raises(ConfigurationError, match=told):
        load_best_responses(path)
