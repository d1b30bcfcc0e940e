"""What code written for CHAMBER's evaluation and benchmarks calls and stores stays."""

import pytest

import cadenza.benchmark
import cadenza.evaluation
from tests.contract.promises import faults, promises

PROMISES = """
[cadenza.evaluation]
BootstrapCI .iqm .mean .ci_low .ci_high .n_resamples
ConditionPair .homogeneous_id .heterogeneous_id
ConditionResult .axis .n_episodes .homogeneous_success .heterogeneous_success .gap_pp .ci_low_pp
    .ci_high_pp .violation_rate .fallback_rate
EpisodeResult .seed .episode_idx .initial_state_seed .success .constraint_violation_peak
    .fallback_fired .force_peak .metadata
HRSVector .entries
HRSVectorEntry .axis .score .gap_pp .weight
LeaderboardEntry .method_id .spike_runs .hrs_vector .hrs_scalar .violation_rate .fallback_rate
    .schema_version
PairedEpisode .seed .episode_idx .initial_state_seed .homogeneous .heterogeneous
PreregistrationError
PreregistrationSpec .axis .condition_pair .seeds .episodes_per_seed .estimator .bootstrap_method
    .failure_policy .git_tag .notes .run_purpose .normalised_axis()
SlackAggregate .max_slack .slack_l2
SpikeRun .spike_id .prereg_sha .git_tag .axis .sub_stage .condition_pair .seeds .episode_results
    .schema_version
aggregate_metrics(values, *, metrics=('iqm', 'optimality_gap', 'performance_profile'),
    threshold=1.0)
aggregate_oscbf_slack(results)
cluster_bootstrap(values, *, n_resamples, rng)
compute_hrs_scalar(vector, *, weights=None)
compute_hrs_vector(condition_results, *, weights=None)
load_prereg(path)
make_condition_row(*, predictor, conformal_mode, vendor_compliance, n_episodes, violations,
    fallback_fires, oscbf_results=())
pacluster_bootstrap(pairs, *, n_resamples, rng)
render_leaderboard(entries)
render_three_table_safety_report(report, *, fmt='markdown')
verify_git_tag(spec, prereg_path, *, repo_path)
[cadenza.benchmark]
EgoActionFactory .__call__(env, seed)
EgoPPOTrainer(*, cfg, ego_uid, ego_obs_space, ego_act_space, partner, device=None)
    .act(obs, *, deterministic=False) .from_config(cfg, *, env, partner, ego_uid)
    .observe(obs, reward, done, *, truncated=False) .state_dict() .update()
TrainedPolicyFactory(*, cfg) .__call__(env, seed)
build_bounds_for_env(env)
build_control_models(env)
build_emergency_controllers(env)
build_env(env_cfg, *, root_seed)
build_partner(partner_cfg)
build_safety_dt(env, *, fallback=0.02)
build_safety_filter(env)
build_safety_snapshot_builder(env)
compute_gae(rewards, values, next_values, episode_boundaries, *, gamma, gae_lambda)
make_stage0_env(*, render_mode=None)
make_stage0_training_env(*, agent_uids, episode_length=100, root_seed=0)
normalize_advantages(advantages)
run_training(cfg, *, trainer_factory=None, repo_root=None, safety_filter=None, safety_state=None,
    safety_bounds=None, safety_snapshot_builder=None, safety_dt=None,
    safety_emergency_controllers=None)
"""
#: Defaults on the wire; every other field is required.
DEFAULTS = {
    "EpisodeResult": {"constraint_violation_peak": 0.0, "fallback_fired": 0, "force_peak": None},
    "LeaderboardEntry": {"schema_version": 3, "outcomes": []},
    "PreregistrationSpec": {
        "bootstrap_method": "cluster",
        "failure_policy": "strict",
        "notes": "",
        "run_purpose": "leaderboard",
    },
    "SpikeRun": {"schema_version": 3},
    "ConditionResult": {},
    "HRSVectorEntry": {},
}


@pytest.mark.parametrize(
    ("module", "path", "parameters"),
    [pytest.param(*entry, id=f"{entry[0]}:{entry[1]}") for entry in promises(PROMISES)],
)
def test_promise_of_chamber_is_kept(module, path, parameters):
    assert faults(module, path, parameters) == []


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_on_the_wire_are_the_promised_ones(name):
    fields = getattr(cadenza.evaluation, name).model_fields
    promised = [
        path.partition(".")[2] for _, path, _ in promises(PROMISES) if path.startswith(f"{name}.")
    ]
    for field in set(promised) & set(fields) - {"metadata"}:
        if field in DEFAULTS[name]:
            assert fields[field].get_default(call_default_factory=True) == DEFAULTS[name][field]
        else:
            assert fields[field].is_required()


def test_names_of_both_packages_are_listed_and_lazy():
    for package, count in ((cadenza.evaluation, 23), (cadenza.benchmark, 16)):
        promised = {
            path.partition(".")[0]
            for module, path, _ in promises(PROMISES)
            if module == package.__name__
        }
        assert promised - set(dir(package)) == set()
        assert len(promised) == count
