"""Code of other packages: part of what a result stands for, and known in every process."""

import importlib
import sys

import pytest

from cadenza.aht.config import load_config
from cadenza.benchmark.evaluation_run import EvaluationConfig, run_evaluation
from cadenza.benchmark.stream_tasks import make_ego_worlds, stream_config
from cadenza.benchmark.tasks import MPE_COOPERATIVE_PUSH, isolated_tasks, register_task
from cadenza.benchmark.training import run_training
from cadenza.benchmark.training_seeds import train_runs
from cadenza.benchmark.verify import verify_bundle_dir
from cadenza.core.errors import ConfigurationError
from cadenza.core.shipped_configs import shipped_config
from cadenza.partners import PartnerSpec
from cadenza.partners.registry import isolated_registry
from tests.plug_in_package import STEADY_PARTNER, install

CONFIG = EvaluationConfig.model_validate(
    {
        "task": "mpe_cooperative_push",
        "policies": ["zero"],
        "partners": ["steady"],
        "conditions": [{"name": "plain"}],
        "seeds": [0, 1],
        "episodes_per_seed": 2,
    }
)


def install_steady(folder, *, speed=0.1, version="1.0"):
    law = STEADY_PARTNER.replace("{speed}", str(speed))
    files = {"__init__.py": "from steady_partner import law", "law.py": law}
    install(folder, "steady_partner", files, group="cadenza.partners", version=version)
    importlib.invalidate_caches()


@pytest.fixture
def steady(tmp_path, monkeypatch):
    """A folder on the import path with a package that registered the partner ``steady``."""
    with isolated_registry():
        install_steady(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.import_module("steady_partner")
        yield tmp_path
    for name in ("steady_partner", "steady_partner.law"):
        del sys.modules[name]


CHANGES = pytest.mark.parametrize("change", [{"speed": 0.2}, {"version": "1.1"}])


@CHANGES
def test_content_id_covers_source_and_version_of_the_plug_in(steady, change):
    spec = PartnerSpec("steady", 0)
    before = spec.content_id
    install_steady(steady, **change)
    assert spec.content_id != before
    install_steady(steady)
    assert spec.content_id == before


@CHANGES
def test_other_code_cannot_go_on_with_an_evaluation_nor_pass_its_verification(steady, change):
    out = steady / "out"
    bundle = run_evaluation(CONFIG, out=out, workers=1, repo_root=out).bundles["zero"]
    cell = min((out / "cells").glob("*.jsonl"))
    cell.unlink()  # as if the run had been killed
    install_steady(steady, **change)
    with pytest.raises(ConfigurationError, match=r"what this folder is for, with \w+.* = .*, got"):
        run_evaluation(CONFIG, out=out, workers=1, repo_root=out, resume=True)
    assert not cell.exists()
    failed = [row for row in verify_bundle_dir(bundle, allow_dirty=True) if not row.ok]
    assert [row.name for row in failed] == ["partners:material", "partners:hashes"]
    assert "others now: steady" in failed[-1].detail

    install_steady(steady)
    run_evaluation(CONFIG, out=out, workers=1, repo_root=out, resume=True)
    assert all(row.ok for row in verify_bundle_dir(bundle, allow_dirty=True))


def test_other_code_of_a_partner_cannot_go_on_with_a_training(steady):
    changes = ["algo=random", "partner.class_name=steady", "total_frames=400"]
    changes += ["~partner.extra.target_xy", "~partner.extra.action_dim", "+evaluation.episodes=1"]
    changes += [f"artifacts_root={steady}", f"log_dir={steady}/logs"]
    config = load_config(
        config_path=shipped_config("train/mpe_cooperative_push.yaml"), overrides=changes
    )
    first = run_training(config)
    again = run_training(config, resume=True)
    assert again.outcome.status == "already_finished"
    install_steady(steady, speed=0.2)
    other = run_training(config, resume=True)
    assert other.outcome.status == "completed"
    assert other.curve.run_id != first.curve.run_id


def test_workers_know_the_task_and_the_partner_that_their_parent_registered(steady):
    (steady / "steady_partner.dist-info" / "entry_points.txt").unlink()
    own = {"task_id": "own_push", "partners": ("steady",), "seen_partner": "steady"}
    with isolated_tasks():
        register_task(MPE_COOPERATIVE_PUSH.model_copy(update=own))
        config = CONFIG.model_copy(update={"task": "own_push", "partners": None})
        outcomes = [
            run_evaluation(config, out=steady / f"out{workers}", workers=workers, repo_root=steady)
            for workers in (1, 2)
        ]
    assert len(outcomes[0].episodes["zero"]) == 4
    assert outcomes[1].episodes == outcomes[0].episodes


def test_workers_of_a_training_know_who_validates(steady):
    (steady / "steady_partner.dist-info" / "entry_points.txt").unlink()
    changes = ["algo=random", "total_frames=100", "evaluation.validation=[{class_name: steady}]"]
    changes += ["evaluation.episodes=1", f"artifacts_root={steady}", f"log_dir={steady}/logs"]
    config = load_config(
        config_path=shipped_config("train/mpe_cooperative_push.yaml"), overrides=changes
    )
    seeds = {str(seed): config.model_copy(update={"seed": seed}) for seed in (0, 1)}
    told = train_runs(seeds, workers=2)
    assert [outcome["status"] for outcome in told.values()] == ["completed", "completed"]


def test_producers_know_the_task_and_the_partner_that_their_parent_registered(steady):
    own = {"task_id": "own_push", "partners": ("steady",), "seen_partner": "steady"}
    with isolated_tasks():
        register_task(MPE_COOPERATIVE_PUSH.model_copy(update=own))
        settings = stream_config("own_push", expert={"factory": "nowhere:policy"}, producers=1)
    kwargs = settings.gym_config["kwargs"]  # what another process, which knows neither, is given
    with isolated_tasks(), isolated_registry(empty=True):
        del sys.modules["steady_partner"], sys.modules["steady_partner.law"]
        world = make_ego_worlds(2, **kwargs)
    assert world.num_envs == 2
