import importlib
import subprocess
import sys

import pytest

import cadenza.safety
from cadenza.safety import affine, api, batched, conformal, oscbf, verifier


def test_package_names_lead_to_their_definitions():
    for name, module in cadenza.safety._EXPORTS.items():
        defined = getattr(importlib.import_module(f"cadenza.safety.{module}"), name)
        assert getattr(cadenza.safety, name) is defined


def test_package_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'SafetyFilter'"):
        _ = cadenza.safety.SafetyFilter


def test_api_gathers_names_without_renaming():
    for name in api.__all__:
        assert hasattr(api, name), name


@pytest.mark.parametrize("package", [affine, batched, conformal, oscbf, verifier])
def test_package_lists_the_names_it_imports_at_first_use(package):
    assert set(package._EXPORTS) <= set(dir(package))
    assert all(hasattr(package, name) for name in dir(package))


def test_package_import_loads_no_library():
    code = "import sys, cadenza.safety; print('numpy' in sys.modules, 'daqp' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]


def test_conformal_names_lead_to_their_definitions():
    for name, module in conformal._EXPORTS.items():
        defined = getattr(importlib.import_module(f"cadenza.safety.conformal.{module}"), name)
        assert getattr(conformal, name) is defined
    with pytest.raises(AttributeError, match="no attribute 'update_everything'"):
        _ = conformal.update_everything
