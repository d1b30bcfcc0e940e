"""Commands find what installed packages add."""

from tests.e2e.commands import REPOSITORY, cadenza
from tests.plug_in_package import STEADY_PARTNER, install

TASK = """\
from cadenza.benchmark.tasks import MPE_COOPERATIVE_PUSH, register_task

register_task(MPE_COOPERATIVE_PUSH.model_copy(update={"task_id": "own_push"}))
"""
ALGORITHM = """\
from cadenza.aht.algorithms import register_algorithm

register_algorithm("own_random", "cadenza.aht.ego_trainer:RandomEgoTrainer.from_config")
"""


def test_task_partner_and_algorithm_of_installed_packages_train_together(tmp_path):
    sources = {
        "own_tasks": ("cadenza.tasks", TASK),
        "own_partners": ("cadenza.partners", STEADY_PARTNER.replace("{speed}", "0.1")),
        "own_algorithms": ("cadenza.algorithms", ALGORITHM),
    }
    for name, (group, text) in sources.items():
        install(tmp_path, name, {"__init__.py": text}, group=group, version="1.0")
    changes = ["env.task=own_push", "partner.class_name=steady", "algo=own_random"]
    changes += ["~partner.extra.target_xy", "~partner.extra.action_dim", "total_frames=100"]
    config = REPOSITORY / "configs" / "train" / "mpe_cooperative_push.yaml"
    done = cadenza(
        "train", config, *changes, "+evaluation.episodes=1", "--json", cwd=tmp_path, fresh=True
    )
    assert done.code == 0, done.err
    assert done.json["frames"] == 100
    listed = cadenza("tasks", "list", "--json", cwd=tmp_path).json["tasks"]
    assert "own_push" in [task["task_id"] for task in listed]
