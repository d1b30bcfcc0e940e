import json
import shutil
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cadenza.benchmark import training
from cadenza.cli.main import app


@pytest.mark.parametrize(
    ("free", "closest", "digests", "failed"),
    [
        (2**30, 0.2, "aa", set()),
        (2**30 - 1, 0.1875, "ab", {"disk", "safety filter", "determinism"}),
    ],
)
def test_a_machine_that_cannot_train_fails(free, closest, digests, failed, tmp_path, monkeypatch):
    made = iter(2 * digests)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(training, "closest_approach", lambda: (closest, 0.2))
    monkeypatch.setattr(training, "short_training_digest", lambda: next(made))
    words = ["doctor", "--folder", str(tmp_path / "new")]
    ended = CliRunner().invoke(app, [*words, "--json"])
    told = json.loads(ended.stdout)
    assert (ended.exit_code, told["ok"]) == (bool(failed), not failed)
    found = {one["name"]: one for one in told["findings"]}
    assert {name for name, one in found.items() if one["required"] and not one["ok"]} == failed
    assert found["disk"]["detail"] == f"1.0 GiB free at {tmp_path}/new; 1 GiB is needed"
    assert found["folder"]["detail"] == f"can write to {tmp_path}/new"
    assert found["git"]["detail"].startswith("no repository here")
    assert found["safety filter"]["detail"].startswith("stopped 0.0000 m") == (not failed)
    assert {"GPU", "onnx", "onnxruntime"} <= found.keys()
    assert list(tmp_path.iterdir()) == []
    rows = [line.split(maxsplit=2) for line in CliRunner().invoke(app, words).stdout.splitlines()]
    assert sum(row[:1] == ["FAIL"] for row in rows) == len(failed)
    assert ["-", "git"] in [row[:2] for row in rows]
