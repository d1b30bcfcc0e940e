import subprocess
import sys


def test_importing_the_package_loads_no_library():
    code = (
        "import sys, cadenza.partners; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
