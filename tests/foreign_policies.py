"""A Python that seems to have LeRobot and CrossFormer, with policies one can compute by hand."""

import sys
import textwrap
from pathlib import Path

#: Modules by path. Their policies say four numbers, see the tests, and count the steps of a chunk.
_MODULES = {
    "torch.py": """
        # What the program needs of torch, in numpy: importing the real one takes seconds.
        import contextlib
        import numpy as np

        uint8 = np.dtype("uint8")
        seeds = []

        class Tensor(np.ndarray):
            def permute(self, *axes):
                return self.transpose(*axes)

            def float(self):
                return self.astype("float32")

            def cpu(self):
                return self

            def numpy(self):
                return np.asarray(self)

        def from_numpy(array):
            return array.view(Tensor)

        def manual_seed(seed):
            seeds.append(seed)

        def cat(tensors):
            return np.concatenate(tensors).view(Tensor)

        no_grad = contextlib.nullcontext
    """,
    "lerobot/__init__.py": "",
    "lerobot/configs/__init__.py": "",
    "lerobot/configs/policies.py": """
        import json, pathlib, types

        class PreTrainedConfig:
            @staticmethod
            def from_pretrained(path):
                print("loading", path)  # the real one prints as well
                file = pathlib.Path(path) / "config.json"
                return types.SimpleNamespace(type="toy", **json.loads(file.read_text()))
    """,
    "huggingface_hub.py": """
        import pathlib

        def snapshot_download(repository, revision):
            folder = pathlib.Path(__file__).parent / "snapshots" / repository / revision
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
            return str(folder)
    """,
    "lerobot/policies/__init__.py": "",
    "lerobot/policies/factory.py": """
        import os, sys
        import numpy as np
        import torch

        class Toy:
            @classmethod
            def from_pretrained(cls, path, config):
                toy = cls()
                toy.width = getattr(config, "actions", 4)
                return toy

            def predict_action_chunk(self, batch):
                state = batch["observation.state"]
                if np.isnan(state).any():
                    print("said before", file=sys.stderr)
                    raise ValueError("no NaN")
                image = batch.get("observation.images.front", np.zeros((3, 1, 1), "float32"))
                assert image.shape[0] == 3
                words = len(batch["task"]) or os.getpid()
                says = [state.sum(), image.mean(), words, torch.seeds[-1]]
                says = np.array(says[: self.width])
                return torch.from_numpy(says[None, None] + np.arange(3.0)[None, :, None])

        def get_policy_class(name):
            return {"toy": Toy}[name]

        def make_pre_post_processors(config, pretrained_path, preprocessor_overrides):
            assert os.path.isdir(pretrained_path)  # a repository's name has no commit
            assert preprocessor_overrides == {"device_processor": {"device": config.device}}
            return dict, lambda action: action
    """,
    "jax.py": """
        import types

        random = types.SimpleNamespace(PRNGKey=lambda seed: seed)
    """,
    "crossformer/__init__.py": "",
    "crossformer/model/__init__.py": "",
    "crossformer/model/crossformer_model.py": """
        import numpy as np

        class CrossFormerModel:
            dataset_statistics = {
                "bridge_dataset": {
                    "action": {"mean": np.ones(4), "std": 2 * np.ones(4)},
                    "proprio_single": {"mean": np.ones(3), "std": 2 * np.ones(3)},
                },
                "two": {"action": {"mean": np.ones(2), "std": np.ones(2)}},
            }

            @classmethod
            def load_pretrained(cls, path):
                return cls()

            def create_tasks(self, texts):
                return texts

            def sample_actions(self, batch, task, *, unnormalization_statistics, head_name, rng):
                assert head_name == "single_arm"
                assert batch["timestep_pad_mask"].tolist() == [[True]]
                assert batch["image_primary"].shape == (1, 1, 224, 224, 3)
                assert batch["image_primary"].dtype == np.uint8
                proprio = batch["proprio_single"].sum() if "proprio_single" in batch else 0.0
                says = np.array([batch["image_primary"].mean(), proprio, len(task[0]), rng])
                mean, std = (unnormalization_statistics[name] for name in ("mean", "std"))
                return (says[: len(mean)] * std + mean)[None, None]
    """,
}


def install_foreign_python(folder: Path) -> Path:
    """Write the modules and an interpreter that finds them first; return the interpreter."""
    for name, text in _MODULES.items():
        path = folder / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{folder / "modules"}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return python
