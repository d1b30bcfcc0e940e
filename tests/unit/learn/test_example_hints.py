"""Examples whose task or peer comes with an extra say which one to install."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SCRIPTS = [*(REPOSITORY / "examples").glob("*.py"), REPOSITORY / "perf" / "scores.py"]
EXTRAS = {
    r"HalfCheetah": "mujoco",
    r"LunarLander|CarRacing": "box2d",
    r"stable_baselines3": "bench",
}


@pytest.mark.parametrize(("pattern", "extra"), EXTRAS.items())
def test_examples_that_need_an_extra_name_it(pattern, extra):
    texts = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS}
    for table in ("perf/scores.yaml", "src/cadenza/learn/agents/presets.yaml"):
        texts["scores.py"] += (REPOSITORY / table).read_text(encoding="utf-8")
    needing = {name: text for name, text in texts.items() if re.search(pattern, text)}
    assert needing
    hint = f"pip install 'cadenza[{extra}]'"
    assert [name for name, text in needing.items() if hint not in text] == []


def test_hints_name_extras_only():
    for path in SCRIPTS:
        for target in re.findall(r"pip install ([^`\n]+)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"'cadenza\[[a-z0-9-]+\]'", target), path.name
