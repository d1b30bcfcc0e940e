"""The code of the page on tasks runs as it stands there, with worker processes."""

import re
from pathlib import Path

from tests.e2e.commands import REPOSITORY, warm

PAGE = (REPOSITORY / "docs" / "how-to" / "add-a-task.md").read_text(encoding="utf-8")


def test_task_of_the_page_is_trained_and_judged(tmp_path: Path) -> None:
    module, program = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "meeting.py").write_text(module, encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = warm(tmp_path / "program.py", cwd=tmp_path, timeout=600.0)
    assert done.code == 0, done.err
    zero, ego = done.out.splitlines()
    assert zero == "zero 0 of 40"
    assert int(ego.split()[1]) > 0
