"""The code of the page on the replay memory runs as it stands there, and names things that are."""

import re
from pathlib import Path

from cadenza.learn.memory import memory
from cadenza.learn.memory.loader import MemoryLoader

PAGE = (Path(__file__).parents[3] / "docs" / "replay-memory.md").read_text(encoding="utf-8")


def test_examples_run_one_after_the_other_and_print_what_they_say(capsys):
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    exec(compile(program, "docs/replay-memory.md", "exec"), {"__name__": "page"})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines() == [
        "4 torch.Size([4, 3])",
        "device cpu",
        "5 memproxy",
        "True",
    ]


def test_classes_that_the_page_names_exist():
    for name in (
        "JointMemoryLoader",
        "JointMemoryLoaderWithDataGroup",
        "LoggingProxyWrapper",
        "MemoryExporterProxyWrapper",
        "MemoryWarmup",
    ):
        assert f"`{name}`" in PAGE
        assert hasattr(memory, name)
    assert "prefetch" in MemoryLoader.__init__.__annotations__
