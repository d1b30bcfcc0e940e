import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from cadenza.core.checkpoints import (
    FORMAT_VERSION,
    CheckpointMetadata,
    load_checkpoint,
    pending_path,
    resolve_uri,
    save_checkpoint,
    sidecar_path,
)
from cadenza.core.errors import CheckpointError, StorageError

URI = "local://artifacts/foo.pt"
STATE = {"w": torch.tensor([1.0, 2.0])}
METADATA = CheckpointMetadata(
    run_id="0123456789abcdef", seed=7, step=50_000, git_sha="unknown", pyproject_hash="p" * 64
)
#: A sidecar as the systems this package follows write it.
OLD_SIDECAR = {
    "run_id": "r",
    "seed": "7",
    "step": 50000,
    "git_sha": "g",
    "pyproject_hash": "p",
    "sha256": "s",
}


def save(root, state=STATE, uri=URI, metadata=METADATA):
    return save_checkpoint(state_dict=state, uri=uri, metadata=metadata, artifacts_root=root)


def load(root, uri=URI, **options):
    return load_checkpoint(uri=uri, artifacts_root=root, **options)


def test_resolve_uri_keeps_the_artifacts_segment(tmp_path):
    assert resolve_uri(URI, artifacts_root=tmp_path) == tmp_path.resolve() / "artifacts" / "foo.pt"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        *((uri, "Unsupported URI scheme.*Phase-0") for uri in ("hf://a/b.pt", "", "LOCAL://a")),
        *((f"local://{p}", "expected a path inside") for p in ("../x.pt", "a/../../x", "/etc/x")),
        ("local://a\0b", "expected no NUL"),
        *((f"local://{path}", "expected a file name") for path in ("", ".", "artifacts/..")),
    ],
)
def test_resolve_uri_of_no_file_inside_the_root_is_refused(tmp_path, uri, told):
    with pytest.raises(CheckpointError, match=told):
        resolve_uri(uri, artifacts_root=tmp_path)


def test_save_then_load_returns_state_and_completed_metadata(tmp_path):
    path = save(tmp_path)
    state, metadata = load(tmp_path)
    assert torch.equal(state["w"], STATE["w"])
    payload = path.read_bytes()
    assert metadata == replace(
        METADATA,
        sha256=hashlib.sha256(payload).hexdigest(),
        size_bytes=len(payload),
        torch_version=str(torch.__version__),
        format_version=FORMAT_VERSION,
    )
    assert sorted(p.name for p in path.parent.iterdir()) == ["foo.pt", "foo.pt.json"]


def test_save_writes_a_sidecar_other_readers_understand(tmp_path):
    path = save(
        tmp_path,
        metadata=replace(METADATA, sha256="stale", config_hash="c" * 16, extra={"note": "λ"}),
    )
    text = sidecar_path(path).read_text("utf-8")
    raw = json.loads(text)
    assert raw["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (raw["run_id"], raw["seed"], raw["step"]) == ("0123456789abcdef", 7, 50_000)
    assert (raw["git_sha"], raw["pyproject_hash"]) == ("unknown", "p" * 64)
    assert (raw["config_hash"], raw["extra"]) == ("c" * 16, {"note": "λ"})
    assert text == json.dumps(raw, sort_keys=True, indent=2)
    with io.BytesIO(path.read_bytes()) as file:
        assert torch.equal(torch.load(file, weights_only=True)["w"], STATE["w"])


def test_save_under_two_names_gives_the_same_digest(tmp_path):
    first = save(tmp_path, uri="local://artifacts/a.pt")
    second = save(tmp_path, uri="local://elsewhere/much_longer_name.pt")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "extra", [{"a": float("nan")}, {"a": object()}, {"a": "\ud800"}, MappingProxyType({"a": 1})]
)
def test_save_with_extra_facts_beyond_json_writes_nothing(tmp_path, extra):
    with pytest.raises(CheckpointError, match="expected values that JSON can express"):
        save(tmp_path, metadata=replace(METADATA, extra=extra))
    assert list(tmp_path.iterdir()) == []


def test_save_of_a_value_that_cannot_be_loaded_keeps_the_old_checkpoint(tmp_path):
    save(tmp_path)
    with pytest.raises(CheckpointError, match="expected a tensor or a plain value, got builtins"):
        save(tmp_path, state={"w": {1}})
    assert torch.equal(load(tmp_path)[0]["w"], STATE["w"])


def test_save_on_a_full_disk_keeps_the_old_checkpoint(tiny_disk):
    save(tiny_disk)
    with pytest.raises(StorageError, match="No space left on device"):
        save(tiny_disk, state={"w": torch.zeros(50_000)})
    state, metadata = load(tiny_disk)
    assert torch.equal(state["w"], STATE["w"])
    assert metadata.step == 50_000
    save(tiny_disk, state={"w": torch.ones(3)})
    assert torch.equal(load(tiny_disk)[0]["w"], torch.ones(3))


def test_save_whose_last_rename_fails_says_that_the_checkpoint_is_complete(tmp_path):
    sidecar_path(resolve_uri(URI, artifacts_root=tmp_path)).mkdir(parents=True)
    with pytest.raises(StorageError, match="the checkpoint is complete and loads under that name"):
        save(tmp_path)
    assert torch.equal(load(tmp_path)[0]["w"], STATE["w"])


KILLED_SAVE = """
import os, sys
from pathlib import Path
import torch
from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint

root, limit = Path(sys.argv[1]), int(sys.argv[2])
old = CheckpointMetadata(run_id="r", seed=0, step=1, git_sha="g", pyproject_hash="p")
new = CheckpointMetadata(run_id="r", seed=0, step=2, git_sha="g", pyproject_hash="p")
uri, count = "local://artifacts/foo.pt", 0

def kill_before_file_operation(event, arguments):
    global count
    if counting and event in {"os.rename", "os.remove", "open"}:
        count += 1
        if count == limit:
            os._exit(9)

counting = False
sys.addaudithook(kill_before_file_operation)
for limit in range(1, 100):
    folder = root / str(limit)
    save_checkpoint(state_dict={"step": 1}, uri=uri, metadata=old, artifacts_root=folder)
    child = os.fork()
    if child == 0:
        counting = True
        save_checkpoint(state_dict={"step": 2}, uri=uri, metadata=new, artifacts_root=folder)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
"""


def test_save_killed_before_any_file_operation_leaves_old_or_new_loadable(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED_SAVE, str(tmp_path), "0"], check=True)
    found = []
    for folder in sorted(tmp_path.iterdir(), key=lambda path: int(path.name)):
        state, metadata = load(folder)
        assert state["step"] == metadata.step
        found.append(metadata.step)
    # Every kill leaves one of the two; the old one first, the new one at the end, no way back.
    assert found == sorted(found)
    assert found[0] == 1
    assert found[-1] == 2
    assert len(found) > 6
    assert found.count(2) >= 3


def test_load_of_a_pair_replaced_meanwhile_reads_the_new_pair(tmp_path, monkeypatch):
    path = save(tmp_path)
    save(tmp_path, uri="local://artifacts/new.pt", state={"w": torch.ones(4)})
    original = json.loads
    replaced = []

    def replace_the_pair_once(text):
        if not replaced:
            replaced.append(True)
            (path.parent / "new.pt").replace(path)
            (path.parent / "new.pt.json").replace(sidecar_path(path))
            text = sidecar_path(path).read_bytes()
        return original(text)

    monkeypatch.setattr("cadenza.core.checkpoints.json.loads", replace_the_pair_once)
    assert torch.equal(load(tmp_path)[0]["w"], torch.ones(4))


def replaced_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)  # opening it would wait


def replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.unlink(), "payload not found"),
        (lambda path: sidecar_path(path).unlink(), "sidecar not found"),
        (replaced_by_a_pipe, "expected a plain payload file, got a pipe"),
        (replaced_by_a_folder, "readable payload file, got 'Is a directory'"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            r"check failed: expected \d+ bytes",
        ),
        (flip_a_bit, "integrity check failed: expected SHA-256"),
    ],
)
def test_load_of_a_damaged_checkpoint_is_refused(tmp_path, damage, told):
    damage(save(tmp_path))
    with pytest.raises(CheckpointError, match=told):
        load(tmp_path)


def test_load_with_a_pending_sidecar_of_another_payload_is_refused(tmp_path):
    path = save(tmp_path)
    sidecar_path(path).replace(pending_path(path))
    assert load(tmp_path)[1].step == 50_000
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="sidecar not found"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "malformed sidecar: expected JSON"),
        ("", "malformed sidecar: expected JSON"),
        ("[" * 100_000, "malformed sidecar: expected JSON"),
        ("\xff", "malformed sidecar: expected JSON"),
        ("[1]", "malformed sidecar: expected a JSON object, got list"),
        ("{}", "missing required field"),
        (json.dumps({**OLD_SIDECAR, "a": float("nan")} | {"format_version": 1}), "not JSON"),
        ("x" * (2**20 + 1), "expected a sidecar of at most 1048576 bytes"),
    ],
)
def test_load_with_a_malformed_sidecar_is_refused(tmp_path, text, message):
    sidecar_path(save(tmp_path)).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_load_of_an_old_pair_without_our_fields_works(tmp_path):
    path = tmp_path / "artifacts" / "happo.pt"
    path.parent.mkdir()
    torch.save({"actor": {"w": torch.ones(2)}}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sidecar_path(path).write_text(json.dumps({**OLD_SIDECAR, "sha256": digest}))
    state, metadata = load(tmp_path, uri="local://artifacts/happo.pt")
    assert torch.equal(state["actor"]["w"], torch.ones(2))
    assert (metadata.seed, metadata.format_version, metadata.size_bytes) == (7, 0, None)


def test_load_of_a_payload_torch_refuses_names_the_file(tmp_path):
    path = save(tmp_path)
    path.write_bytes(b"junk")
    digest = hashlib.sha256(b"junk").hexdigest()
    sidecar_path(path).write_text(json.dumps({**OLD_SIDECAR, "sha256": digest}))
    with pytest.raises(CheckpointError, match=r"foo\.pt: expected a torch archive"):
        load(tmp_path)


def test_load_of_a_payload_larger_than_allowed_is_refused(tmp_path):
    size = save(tmp_path).stat().st_size
    with pytest.raises(CheckpointError, match=f"expected a payload of at most {size - 1} bytes"):
        load(tmp_path, max_bytes=size - 1)
    assert load(tmp_path, max_bytes=size)[1].size_bytes == size


@pytest.mark.parametrize("name", sorted(OLD_SIDECAR))
def test_metadata_without_a_required_field_names_it(name):
    raw = {key: value for key, value in OLD_SIDECAR.items() if key != name}
    with pytest.raises(CheckpointError, match=rf"missing required field\(s\) {name};"):
        CheckpointMetadata.from_dict(raw)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        *(({"step": x}, "malformed integer in 'step'") for x in ("x", None, [], float("inf"), 1.5)),
        ({"format_version": 2}, "expected format_version <= 1, got 2"),
    ],
)
def test_metadata_that_nobody_can_read_is_refused(changes, told):
    with pytest.raises(CheckpointError, match=told):
        CheckpointMetadata.from_dict({**OLD_SIDECAR, **changes})


def test_metadata_converts_numbers_and_text_and_ignores_unknown_keys():
    raw = {**OLD_SIDECAR, "step": 3.0, "git_sha": 12, "future": [1], "extra": "not a mapping"}
    metadata = CheckpointMetadata.from_dict(raw)
    assert (metadata.seed, metadata.step, metadata.git_sha, metadata.extra) == (7, 3, "12", {})
