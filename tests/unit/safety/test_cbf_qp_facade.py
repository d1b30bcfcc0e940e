import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety import cbf_qp, snapshot
from cadenza.safety.cbf_qp import ExpCBFQP, SafetyMode
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.filters.joint import CentralizedCBFQP, SharedControlCBFQP
from cadenza.safety.rows import barrier

MODELS = {"a": DoubleIntegratorControlModel("a", 2)}


def test_names_of_the_original_module_are_here():
    assert cbf_qp.AgentSnapshot is snapshot.AgentSnapshot
    assert cbf_qp.pair_h_value is barrier.pair_h_value
    assert cbf_qp.DEFAULT_CBF_GAMMA == 5.0


def test_modes_have_the_promised_values():
    assert {mode.name: mode.value for mode in SafetyMode} == {
        "EGO_ONLY": "ego_only",
        "CENTRALIZED": "centralized",
        "SHARED_CONTROL": "shared_control",
    }


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        (SafetyMode.EGO_ONLY, EgoOnlyCBFQP, {}),
        (SafetyMode.CENTRALIZED, CentralizedCBFQP, {"dt": 0.05}),
        (SafetyMode.SHARED_CONTROL, SharedControlCBFQP, {"dt": 0.05}),
    ],
)
def test_calling_the_class_builds_the_filter_of_a_mode(mode, kind, options):
    guard = ExpCBFQP(control_models=MODELS, mode=mode, cbf_gamma=2.0, **options)
    assert type(guard) is kind
    assert guard.mode is mode
    with pytest.raises(ConfigurationError, match="cbf_gamma"):
        ExpCBFQP(control_models=MODELS, mode=mode, cbf_gamma=0.0, **options)


def test_calling_the_class_without_a_mode_protects_the_ego_alone():
    assert ExpCBFQP(control_models=MODELS).mode is SafetyMode.EGO_ONLY
    with pytest.raises(ConfigurationError, match="expected no dt for SafetyMode"):
        ExpCBFQP(control_models=MODELS, dt=0.05)
    assert ExpCBFQP(control_models=MODELS, mode=SafetyMode.CENTRALIZED).mode is (
        SafetyMode.CENTRALIZED
    )


def test_calling_the_class_with_the_value_of_a_mode_is_refused():
    with pytest.raises(ConfigurationError, match="expected a SafetyMode, got 'centralized'"):
        ExpCBFQP(control_models=MODELS, mode="centralized", dt=0.05)


def test_named_constructors_are_the_filters_themselves():
    assert ExpCBFQP.ego_only is EgoOnlyCBFQP
    assert ExpCBFQP.centralized is CentralizedCBFQP
    assert ExpCBFQP.shared_control is SharedControlCBFQP
