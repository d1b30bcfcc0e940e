import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

import cadenza.safety
from cadenza.safety import (
    DoubleIntegratorControlModel,
    ExpCBFQP,
    affine,
    api,
    arms,
    batched,
    conformal,
    emergency,
    oscbf,
    reporting,
    solvers,
    verifier,
    wrappers,
)
from cadenza.safety.wrappers import (
    RobotFilterWrapper,
    SafetyFilterWrapper,
    VectorRobotFilterWrapper,
    VectorSafetyFilterWrapper,
)
from cadenza.safety.wrappers.guard import (
    SingleKeywords,
    SingleRobotKeywords,
    VectorKeywords,
    VectorRobotKeywords,
)

PACKAGES = [
    *(cadenza.safety, affine, arms, batched, conformal, emergency),
    *(oscbf, reporting, solvers, verifier, wrappers),
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_package_finds_every_name_it_lists_and_no_other(package):
    assert all(getattr(package, name) is not None for name in dir(package) if name[0] != "_")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_promised_names_are_listed():
    promised = {"Bounds", "SafetyState", "ExpCBFQP", "EmergencyController", "SafetyRuntime"}
    assert promised <= set(dir(cadenza.safety))
    assert all(hasattr(api, name) for name in api.__all__)


@pytest.mark.parametrize("home", [cadenza.safety, api])
def test_former_name_of_both_filters_warns_where_it_is_read(home):
    with pytest.warns(DeprecationWarning, match=r"SafetyFilter is deprecated.*0\.3\.0") as caught:
        either = home.SafetyFilter
    assert [warning.filename for warning in caught] == [__file__]
    models = {"ego": DoubleIntegratorControlModel("ego", 2)}
    assert isinstance(ExpCBFQP.ego_only(control_models=models), either)
    assert isinstance(ExpCBFQP.centralized(control_models=models, dt=0.1), either)
    assert not isinstance(models, either)
    assert "SafetyFilter" not in {*home.__all__, *dir(home)}


def test_packages_and_filters_load_no_library_they_do_not_use():
    code = (
        "import sys, cadenza.safety, cadenza.safety.batched, cadenza.safety.wrappers\n"
        "print({'torch', 'gymnasium', 'daqp', 'mujoco'} & set(sys.modules))\n"
        "import cadenza.safety.cbf_qp\n"
        "print({'clarabel', 'osqp', 'piqp', 'quadprog', 'scipy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\nset()\n"


@pytest.mark.parametrize(
    ("typed", "wrapper"),
    [
        (SingleKeywords, SafetyFilterWrapper),
        (VectorKeywords, VectorSafetyFilterWrapper),
        (SingleRobotKeywords, RobotFilterWrapper),
        (VectorRobotKeywords, VectorRobotFilterWrapper),
    ],
)
def test_guard_types_what_its_wrappers_take(typed, wrapper):
    taken = get_type_hints(wrapper.__init__)
    (more,) = {"task", "robot"} & taken.keys()  # **task: Unpack[TaskKeywords]
    (keywords,) = get_args(taken.pop(more))
    taken |= get_type_hints(keywords)
    assert get_type_hints(typed) == {name: taken[name] for name in taken.keys() - {"env", "return"}}
