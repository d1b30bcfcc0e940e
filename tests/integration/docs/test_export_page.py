"""The code of the page on ONNX export runs as it stands there."""

import re
import threading
from pathlib import Path

import onnx

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "export-a-policy.md").read_text(
    encoding="utf-8"
)


def test_page_exports_a_file_that_agrees_with_the_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    exec(compile(program, "docs/how-to/export-a-policy.md", "exec"), names)  # noqa: S102
    assert names["actions"].shape == (5, 2)
    exporter = names["exporter"]
    assert [(p.key, p.value) for p in onnx.load(names["item"].filepath).metadata_props] == [
        ("task", "cooperative push"),
        ("comment", "before training"),
    ]
    items = []
    thread = threading.Thread(target=lambda: items.append(names["ask"](exporter)), daemon=True)
    thread.start()
    while thread.is_alive():
        exporter.process_pending_exports()
    assert items == [exporter.latest()]
    assert exporter.cycle == 1000
