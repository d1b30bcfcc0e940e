import subprocess
import sys

import pytest

import cadenza.envs


def test_every_short_name_resolves_to_its_class():
    for name in cadenza.envs.__all__:
        assert getattr(cadenza.envs, name).__name__ == name
        assert name in dir(cadenza.envs)


def test_unknown_short_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchEnv"):
        _ = cadenza.envs.NoSuchEnv


def test_importing_the_package_and_its_tasks_loads_neither_torch_nor_pillow_nor_pettingzoo():
    code = (
        "import sys, cadenza.envs; assert 'gymnasium' not in sys.modules;"
        "import cadenza.envs.vector_mpe, cadenza.envs.vector_crossing, cadenza.envs.adapters;"
        "import cadenza.envs.wrappers.texture_filter;"
        "heavy = {'torch', 'PIL', 'pettingzoo', 'scipy', 'matplotlib'} & set(sys.modules);"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
