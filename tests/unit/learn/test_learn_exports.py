import subprocess
import sys

import pytest

import cadenza.learn
import cadenza.learn.callbacks


@pytest.mark.parametrize("package", [cadenza.learn, cadenza.learn.callbacks])
def test_package_offers_its_names_and_refuses_others(package):
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018 -- the access is the test


def test_soft_actor_critic_is_reached_under_its_short_name():
    assert cadenza.learn.sac.__name__ == "cadenza.learn.algorithms.sac"
    assert "sac" in dir(cadenza.learn)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, cadenza.learn, cadenza.learn.callbacks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
