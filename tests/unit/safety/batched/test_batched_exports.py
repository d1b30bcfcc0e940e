"""Short names of the two packages lead to their definitions, without loading torch early."""

import importlib
import subprocess
import sys

import pytest

from cadenza.safety import batched, wrappers


@pytest.mark.parametrize("package", [batched, wrappers])
def test_names_lead_to_their_definitions(package):
    for name, module in package._EXPORTS.items():
        defined = getattr(importlib.import_module(f"{package.__name__}.{module}"), name)
        assert getattr(package, name) is defined
    with pytest.raises(AttributeError, match="no attribute 'project_everything'"):
        _ = package.project_everything


def test_packages_load_no_library():
    code = (
        "import sys, cadenza.safety.batched, cadenza.safety.wrappers\n"
        "print('torch' in sys.modules, 'gymnasium' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]
