import subprocess
import sys

import pytest

import cadenza.partners


def test_every_short_name_resolves_to_its_object():
    for name in cadenza.partners.__all__:
        assert getattr(cadenza.partners, name).__name__ == name
        assert name in dir(cadenza.partners)


def test_unknown_short_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"cadenza\.partners' has no attribute 'NoPartner'"):
        _ = cadenza.partners.NoPartner


def test_importing_the_package_loads_no_library():
    code = (
        "import sys, cadenza.partners; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
