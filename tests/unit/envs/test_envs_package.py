import subprocess
import sys


def test_importing_the_package_and_its_tasks_loads_neither_torch_nor_pillow_nor_pettingzoo():
    code = (
        "import sys, cadenza.envs; assert 'gymnasium' not in sys.modules;"
        "import cadenza.envs.mpe, cadenza.envs.crossing, cadenza.envs.adapters;"
        "import cadenza.envs.wrappers, cadenza.envs.maniskill.stage1_pickplace;"
        "import cadenza.envs.maniskill.stage1_pickplace, cadenza.envs.panda_kinematics;"
        "heavy = {'torch', 'PIL', 'pettingzoo', 'scipy', 'matplotlib'} & set(sys.modules);"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
