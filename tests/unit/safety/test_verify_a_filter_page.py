"""The code of `docs/how-to/verify-a-filter.md` runs as printed, and prints what the text says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "verify-a-filter.md"


def test_code_runs_and_prints_what_its_comments_say(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})  # noqa: S102 - our own page
    holds, failure = capsys.readouterr().out.splitlines()
    assert f"# {holds}\n" in block
    said = re.findall(r"# \.\.\. (.*?) \.\.\.", block)
    assert len(said) == 1
    assert said[0] in failure
