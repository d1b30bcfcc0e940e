import subprocess
import sys

from cadenza.core.types import EpisodeState


def test_episode_states_have_the_published_numbers():
    assert {state.name: state.value for state in EpisodeState} == {
        "RUNNING": 0,
        "INTERRUPTED": 1,
        "TERMINAL": 2,
        "INITIAL": 3,
    }


def test_light_modules_do_not_load_torch():
    code = """
import sys
import cadenza.core
from cadenza.core import arrays, errors, files, json_values, log_sinks, provenance, runlog
from cadenza.core import schedules, seeding, spaces, threads, timing, types, wandb_run
heavy = sorted({"torch", "wandb", "scipy", "matplotlib", "pydantic"} & set(sys.modules))
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True
    )
    assert (child.returncode, child.stderr) == (0, "")
