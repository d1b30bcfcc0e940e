"""Rules of admission: one table each, and evidence that is pinned."""

import hashlib

import pytest

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.evaluation.admission import (
    AdmissionThresholds,
    WrappedEvidence,
    a1_outcome,
    a2_outcome,
    a3_outcome,
    a4_outcome,
    final,
    overall_verdict,
    thresholds_in,
    wrapped_profile,
)
from cadenza.evaluation.prereg import LockedRegistration
from cadenza.evaluation.results import EpisodeResult, episode_line

P, F, I = "PASS", "FAIL", "INDETERMINATE"  # noqa: E741


@pytest.mark.parametrize(
    ("rule", "low", "high", "limit", "outcome"),
    [
        (a1_outcome, 0.95, 1.0, 0.95, P),
        (a1_outcome, 0.94, 0.95, 0.95, I),
        (a1_outcome, 0.5, 0.949, 0.95, F),
        (a2_outcome, 0.0, 0.05, 0.05, P),
        (a2_outcome, 0.05, 0.06, 0.05, I),
        (a2_outcome, 0.051, 0.2, 0.05, F),
        (a3_outcome, 0.2, 0.9, 0.2, P),
        (a3_outcome, -0.1, 0.2, 0.2, I),
        (a3_outcome, -0.1, 0.19, 0.2, F),
    ],
)
def test_interval_becomes_an_outcome(rule, low, high, limit, outcome):
    assert rule(low, high, limit) == outcome


@pytest.mark.parametrize(
    ("bounds", "outcome"),
    [
        ({"a": (0.8, 1.0), "b": (0.75, 0.9)}, P),
        ({"a": (0.8, 1.0), "b": (0.7, 0.9)}, I),
        ({"a": (0.7, 0.9), "b": (0.5, 0.74)}, F),
        ({"a": (0.99, 1.0), "b": (0.0, 0.1)}, F),
    ],
)
def test_every_partner_must_clear_the_floor(bounds, outcome):
    assert a4_outcome(bounds, 0.75) == outcome


def test_floor_without_partners_is_refused():
    with pytest.raises(InputError):
        a4_outcome({}, 0.75)


def test_straddle_of_wrapped_evidence_is_final():
    assert [final(outcome) for outcome in (P, I, F)] == [P, F, F]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((P, P, P, P), "ADMITTED"),
        ((P, P, P, None), "ADMITTED"),
        ((F, I, F, F), "NOT_SOLVABLE"),
        ((I, P, P, P), "INDETERMINATE"),
        ((P, F, I, P), "INDETERMINATE"),
        ((P, F, P, P), "CONTROL"),
        ((P, P, F, F), "CONTROL"),
        ((P, P, P, F), "UNINSTRUMENTABLE"),
        ((P, P, P, I), "INDETERMINATE"),
    ],
)
def test_outcomes_become_a_verdict(outcomes, verdict):
    assert overall_verdict(*outcomes) == verdict


def episode(seed, k, partner, *, success=True, force=10.0):
    return EpisodeResult(
        seed=seed,
        episode_idx=k,
        initial_state_seed=k,
        success=success,
        force_peak=force,
        metadata={"member": partner},
    )


@pytest.fixture
def evidence(tmp_path):
    """Ten episodes in each of five seeds: partner ``strong`` once, ``weak`` half of the time."""
    rows = [
        episode(seed, k, partner, force=10.0 if partner == "strong" or k % 2 else 99.0)
        for seed in range(5)
        for partner in ("strong", "weak")
        for k in range(10)
    ]
    path = tmp_path / "bundle" / "episodes_seed0.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"".join(map(episode_line, rows)))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, WrappedEvidence(files={"bundle/episodes_seed0.jsonl": digest}, stress_limit=50.0)


def test_profile_is_computed_from_pinned_episodes(evidence, tmp_path):
    _, wrapped = evidence
    profile = wrapped_profile(wrapped, tmp_path)
    assert profile["strong"] == pytest.approx((0.798, 1.0), abs=5e-4)  # every episode of five seeds
    low, high = profile["weak"]  # a success that breaks the limit does not count
    assert low < 0.5 < high < 0.75
    assert a4_outcome(profile, 0.75) == F
    ignoring = wrapped.model_copy(update={"stress_limit": None})
    assert wrapped_profile(ignoring, tmp_path)["weak"] == profile["strong"]


@pytest.mark.parametrize("change", ["bytes", "missing", "outside", "no partner"])
def test_evidence_that_is_not_what_was_pinned_is_refused(evidence, tmp_path, change):
    path, wrapped = evidence
    files = dict(wrapped.files)
    if change == "bytes":
        path.write_bytes(path.read_bytes() + b"\n")
    elif change == "missing":
        path.unlink()
    elif change == "outside":
        files = {"../" + name: digest for name, digest in files.items()}
    else:
        path.write_bytes(
            path.read_bytes().replace(b'"partner":"weak",', b"").replace(b"member", b"m")
        )
        files = dict.fromkeys(files, hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(IntegrityError):
        wrapped_profile(wrapped.model_copy(update={"files": files}), tmp_path)


def registration(**changes):
    block = {"tau_solv": 0.95, "tau_infeasible": 0.05, "delta_min": 0.2, "c_min_ego": 0.75}
    parameters = {"admission": block | changes}
    text = f"{{task_id: t, git_tag: x, decision_rules: r, parameters: {parameters}}}"
    return LockedRegistration(content=text.encode(), git_tag="x")


def test_registered_limits_are_read_and_checked():
    assert thresholds_in(registration(), "t") == AdmissionThresholds(
        tau_solv=0.95, tau_infeasible=0.05, delta_min=0.2, c_min_ego=0.75
    )
    with pytest.raises(ConfigurationError, match=r"parameters\.admission\.c_min_ego"):
        thresholds_in(registration(c_min_ego=1.2), "t")
    with pytest.raises(ConfigurationError, match="task 'u'"):
        thresholds_in(registration(), "u")
