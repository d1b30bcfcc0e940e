"""Who vouches for a bundle, with the keys and files that OpenSSH uses."""

import hashlib
import json
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from cadenza.benchmark.bundle import build_bundle_files, write_bundle_dir
from cadenza.benchmark.signing import SIGNATURE_NAME, merkle_root, read_allowed_signers
from cadenza.benchmark.verify import sign_verified, verify_bundle_dir
from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from tests.unit.benchmark.samples import make_key, make_request
from tests.unit.benchmark.test_verify import edited, failed, reseal

pytest.importorskip("cryptography")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "bundle"
    write_bundle_dir(path, build_bundle_files(make_request()))
    return path


@pytest.fixture
def key(tmp_path):
    line = make_key(tmp_path / "key")
    (tmp_path / "allowed_signers").write_text(f"# trusted\n\nada@example.org {line}")
    return tmp_path / "key"


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def test_root_of_three_files_is_the_tree_of_the_header():
    one, two, three = (bytes([k]) * 32 for k in (1, 2, 3))
    leaves = [sha(b"\0", n, b"\0", d) for n, d in ((b"a", one), (b"b", two), (b"c", three))]
    expected = sha(b"\1", sha(b"\1", leaves[0], leaves[1]), leaves[2])
    files = {"c": three.hex(), "a": one.hex(), "b": two.hex()}
    assert merkle_root(files) == expected.hex()
    with pytest.raises(InputError):
        merkle_root({})


def test_signed_bundle_verifies_by_name(folder, key, tmp_path):
    trusted = {"allowed_signers": tmp_path / "allowed_signers", "require_signature": True}
    assert failed(verify_bundle_dir(folder, **trusted)) == ["signature:absent"]
    assert sign_verified(folder, key) == folder / SIGNATURE_NAME
    rows = verify_bundle_dir(folder, **trusted)
    assert failed(rows) == []
    assert next(r.detail for r in rows if r.name == "signature:signer") == "ada@example.org"
    assert failed(verify_bundle_dir(folder)) == []
    assert failed(verify_bundle_dir(folder, require_signature=True)) == ["signature:signer"]
    first = (folder / SIGNATURE_NAME).read_bytes()
    sign_verified(folder, key)  # Ed25519 draws nothing
    assert (folder / SIGNATURE_NAME).read_bytes() == first


def test_keys_of_ssh_keygen_sign_and_strangers_have_its_fingerprint(folder, key, tmp_path):
    program = shutil.which("ssh-keygen")
    if program is None:
        pytest.skip("no ssh-keygen here")
    for kind in ("ed25519", "rsa"):
        command = [program, "-q", "-t", kind, "-N", "", "-f", str(tmp_path / kind)]
        subprocess.run(command, check=True)
    sign_verified(folder, tmp_path / "ed25519")
    rows = verify_bundle_dir(folder, allowed_signers=tmp_path / "allowed_signers")
    assert failed(rows) == ["signature:signer"]
    told = subprocess.run(
        [program, "-lf", tmp_path / "ed25519.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert told in next(r.detail for r in rows if r.name == "signature:signer")
    with pytest.raises(ConfigurationError, match="expected an Ed25519 private key"):
        sign_verified(folder, tmp_path / "rsa")


def test_rewritten_checksums_do_not_renew_a_signature(folder, key):
    sign_verified(folder, key)
    edited(lambda c: c["summary"].update(success_mean=0.9))(folder)
    signature = (folder / SIGNATURE_NAME).read_bytes()
    (folder / SIGNATURE_NAME).unlink()
    reseal(folder)
    (folder / SIGNATURE_NAME).write_bytes(signature)
    assert "signature:statement" in failed(verify_bundle_dir(folder))


def test_signature_of_another_bundle_fails(folder, key, tmp_path):
    sign_verified(folder, key)
    other = tmp_path / "other"
    write_bundle_dir(other, build_bundle_files(make_request(repro_command="cadenza eval run b")))
    shutil.copy(folder / SIGNATURE_NAME, other)
    assert failed(verify_bundle_dir(other)) == ["signature:statement"]


@pytest.mark.parametrize("text", ["{}", "[1]", '{"statement": 1, "public_key": 2, "signature": 3}'])
def test_malformed_signature_is_one_failed_row(folder, text):
    (folder / SIGNATURE_NAME).write_text(text)
    assert [name.partition(":")[0] for name in failed(verify_bundle_dir(folder))][-1] == "signature"


def test_bundle_that_fails_is_not_signed(folder, key):
    (folder / "REPRO.txt").write_text("x")
    with pytest.raises(IntegrityError, match="expected a bundle that verifies, got"):
        sign_verified(folder, key)
    assert not (folder / SIGNATURE_NAME).exists()


@pytest.mark.parametrize(
    "line", ["ada", "ada ssh-rsa AAAA", "ada ssh-ed25519 AAAA", "ada ssh-ed25519 ?"]
)
def test_list_of_trusted_keys_refuses_other_lines(tmp_path, line):
    path = tmp_path / "allowed_signers"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(ConfigurationError, match="line 2: expected 'NAME ssh-ed25519 KEY'"):
        read_allowed_signers(path)
    with pytest.raises(ConfigurationError, match="--allowed-signers"):
        read_allowed_signers(tmp_path / "none")


def test_commands_sign_and_verify(folder, key, tmp_path):
    def run(*words):
        return CliRunner().invoke(app, ["eval", *map(str, words)])

    assert run("sign", folder, "--key", key).exit_code == 0
    words = ("verify", folder, "--require-signature", "--repo-root", tmp_path, "--json")
    assert json.loads(run(*words).output)["ok"] is True
    (folder / SIGNATURE_NAME).unlink()
    assert run(*words).exit_code == 1
