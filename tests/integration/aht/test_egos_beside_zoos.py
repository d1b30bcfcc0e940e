"""Egos trained beside zoos by the command: who plays, what is refused, what a kill changes."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.aht.config import EgoAHTConfig, config_fingerprint
from cadenza.benchmark.training import run_training
from cadenza.cli.configuration import read_training_config
from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import sha256_file
from cadenza.core.payloads import serialise
from cadenza.partners.zoo_manifest import read_manifest, write_manifest
from tests.campaigns import size
from tests.zoo_samples import made

PUSH, FORAGE = "push.yaml", "foraging.yaml"
#: Settings that every run has, and those of each algorithm.
COMMON = (
    *("total_frames=240", "checkpoint_every=60", "env.episode_length=10", "evaluation.episodes=2"),
    *("runtime.device=cpu", "evaluation.every_frames=0"),
)
RUNS = {
    "mappo": (PUSH, ("algo=mappo", "ppo.rollout_length=8", "ppo.batch_size=24"), 4, "learnability"),
    "happo": (PUSH, ("algo=happo", "happo.rollout_length=8", "happo.batch_size=8"), 1, "rank"),
    "sac": (PUSH, ("algo=sac", "sac.batch_size=16", "sac.warmup_steps=40"), 3, "maximin"),
    "choices": (FORAGE, ("recurrent_ppo.rollout_length=8",), 4, "learnability"),
}


class StopError(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with two zoos, where the commands run."""
    folder = tmp_path_factory.mktemp("place")
    made(folder / "push", episodes=2, steps=80)
    made(folder / "forage", task="foraging", options={"size": 7}, episodes=2, steps=80)
    for name, task in ((PUSH, "mpe_cooperative_push"), (FORAGE, "foraging")):
        algo = "recurrent_ppo" if name == FORAGE else "mappo"
        (folder / name).write_text(json.dumps({"algo": algo, "env": {"task": task}}))
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def configuration(folder, name, *more, zoos=None):
    file, own, count, sampler = RUNS[name]
    settings = [*COMMON, *own, f"env.num_envs={count}", f"sampler={sampler}", *more]
    settings += [f"artifacts_root={folder}", f"log_dir={folder}/logs"]
    chosen = zoos or [Path("forage" if file == FORAGE else "push")]
    return read_training_config(Path(file), settings, chosen)


@pytest.mark.parametrize("name", size(["sac", "choices"], RUNS))
def test_interrupted_run_ends_with_the_bytes_of_an_unbroken_one(place, tmp_path, name):
    def stop_at(frames):
        def progress(done, total, last):
            if done >= frames:
                raise StopError

        return progress

    whole = run_training(configuration(tmp_path / "whole", name))
    broken = configuration(tmp_path / "broken", name)
    for frames in (90, 150):
        with pytest.raises(StopError):
            run_training(broken, resume=True, progress=stop_at(frames))
    ended = run_training(broken, resume=True)
    assert ended.outcome.resumed_from >= 120
    assert ended.curve.episodes == whole.curve.episodes
    states = [serialise(each.trainer.training_state()) for each in (ended, whole)]
    assert states[0] == states[1]


def test_card_names_zoo_digest_and_members(place, tmp_path):
    config = configuration(tmp_path, "mappo")
    run_training(config)
    (card,) = (tmp_path / "artifacts").glob("*.run.json")
    told = json.loads(card.read_text())["config"]
    names = [member.name for member in read_manifest(Path("push")).members]
    digest = sha256_file(Path("push/manifest.json"))
    assert told["zoos"] == [{"zoo": "push", "sha256": digest, "members": names}]
    addresses = [f"local://push/members/{name}.pt" for name in names]
    assert [each["weights_uri"] for each in told["partners"]] == addresses
    assert told["sampler"]["kind"] == "learnability"


def test_sampler_and_digests_are_part_of_a_run_and_absent_ones_of_none(place, tmp_path):
    one, other = (configuration(tmp_path, "mappo", f"sampler={k}") for k in ("rank", "uniform"))
    assert config_fingerprint(one) != config_fingerprint(other)
    assert "weights_sha256" not in read_training_config(Path(PUSH), []).partner.model_dump()


def test_task_takes_the_options_of_the_zoo_and_refuses_others(place, tmp_path):
    assert configuration(tmp_path, "choices").env.options["size"] == 7
    shipped = read_training_config(Path("foraging"), ["algo=ppo"], [Path("forage")])
    assert shipped.env.options["size"] == 7  # the file says 8
    with pytest.raises(ConfigurationError, match=r"env.options: expected .*'size': 7.* as the zoo"):
        configuration(tmp_path, "choices", "env.options.size=9")


def test_held_out_members_and_other_tasks_are_refused(place, tmp_path):
    with pytest.raises(ConfigurationError, match="a zoo of task 'mpe_cooperative_push', got one"):
        configuration(tmp_path, "mappo", zoos=[Path("forage")])
    manifest = read_manifest(Path("push"))
    held = tuple(m.model_copy(update={"split": "held_out"}) for m in manifest.members)
    write_manifest(tmp_path, manifest.model_copy(update={"members": held}))
    told = CliRunner().invoke(app, ["train", PUSH, "--zoo", str(tmp_path)])
    assert told.exit_code == 2
    address = f"local://{tmp_path.name}/{held[0].file}"
    member = {"class_name": "zoo_member", "weights_uri": address}
    named = {**member, "extra": {"root": str(tmp_path.parent)}}
    sections = ({"partners": [named]}, {"partner": named}, {"evaluation": {"validation": [named]}})
    for section in sections:
        listed = EgoAHTConfig.model_validate({"env": {"task": "mpe_cooperative_push"}, **section})
        with pytest.raises(ConfigurationError, match="expected a public member, got one that is"):
            run_training(listed)
    assert "expected a zoo with public members, got 6 that are held out" in told.output


def test_sampler_without_several_partners_is_refused(place):
    with pytest.raises(ConfigurationError, match="sampler: expected its default without several"):
        read_training_config(Path(PUSH), ["sampler=rank"])


def test_seeds_beside_a_zoo_are_the_same_bytes_with_any_number_of_workers(place, tmp_path):
    words = ["train", PUSH, "--zoo", "push", "--json", "--seeds", "3", "--episodes", "0"]
    words += [*COMMON, "ppo.rollout_length=8", "ppo.batch_size=24", "sampler=rank"]
    found = []
    for workers in ("1", size("2", "8")):
        out = tmp_path / workers
        told = CliRunner().invoke(app, [*words, "--out", str(out), "--workers", workers])
        assert told.exit_code == 0, told.output
        assert len(json.loads(told.stdout)["runs"]) == 3
        files = sorted((out / "policies").rglob("*.policy.safetensors"))
        found.append([file.read_bytes() for file in files])
    assert len(found[0]) == 3
    assert found[0] == found[1]
