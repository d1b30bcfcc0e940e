"""Partners that need more than the name of their robot, and what each of them sees and does."""

import json
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces

from cadenza.core.checkpoints import CheckpointMetadata, save_checkpoint
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.portable import save_policy_file
from cadenza.partners.frozen import FrozenNetworkPartner
from cadenza.partners.openvla import OpenVLAPartner
from cadenza.partners.registry import load_partner, partner_card
from cadenza.partners.remote import close_processes
from cadenza.partners.spec import PartnerSpec
from tests.foreign_policies import install_foreign_python

#: Partners that are networks of states.
NETWORKS = ("frozen_harl", "frozen_mappo", "onnx", "policy")
#: Partners whose actions no task bounds.
LEARNED = (*NETWORKS, "crossformer_zero_shot", "lerobot_policy", "openvla_lora_specialist")


class MemoryPartner(FrozenNetworkPartner):
    """Plays a network that is in memory."""

    def __init__(self, network, uid):
        uri = f"memory:{network.content_id}"
        super().__init__(PartnerSpec("network", 0, weights_uri=uri, extra={"uid": uid}))
        self.made = network

    def read_network(self):
        return self.made


#: Tasks of the partners at the door.
DOORS = ("doorway", "doorway_diffdrive")


def state_dim(robots):
    """Return the length of a robot's state among so many."""
    return 6 + 4 * (robots - 1)


def plays(name, task):
    """Return whether a partner is made for one task."""
    return partner_card(name).tasks == (task,)


def states(name, robots, rng, batch=()):
    """Return random states of its robot: foragers see cells, arms what their task tells."""
    if plays(name, "foraging"):  # three foods and two players
        return rng.integers(0, 8, (*batch, 15)).astype(np.float32)
    widths = {("cocarry_mj",): 20, ("handover_mj",): 18, DOORS: 11}
    width = widths.get(partner_card(name).tasks, state_dim(robots))
    return rng.uniform(-2, 2, (*batch, width)).astype(np.float32)


def own_space(name):
    """Return what it acts within before it is bound; learned partners know no bounds."""
    if plays(name, "foraging"):
        return spaces.Box(0.0, 5.0, (1,))
    bound = {("crossing",): 0.5, DOORS: 0.75}.get(partner_card(name).tasks, 1.0)
    sizes = {("cocarry_mj",): 3, ("handover_mj",): 6}
    return spaces.Box(-bound, bound, (sizes.get(partner_card(name).tasks, 2),))


class EchoBackend:
    """Says tokens that depend on the image alone."""

    norm_stats: ClassVar = {"toy": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7}}}

    def generate(self, image, prompt, n):
        return [31744 + int(image.sum() * (k + 1)) % 256 for k in range(n)]


class Makers:
    """Builds partners whose weights lie in ``folder``; each is made when it is first asked for."""

    def __init__(self, folder, patch):
        self._folder = folder
        patch.setenv("CADENZA_ARTIFACTS_ROOT", str(folder))
        python = str(install_foreign_python(folder / "env"))
        for name in ("LEROBOT", "CROSSFORMER"):
            patch.setenv(f"CADENZA_{name}_PYTHON", python)
        (folder / "policy").mkdir()
        (folder / "policy" / "config.json").write_text(json.dumps({"actions": 2}))

    def make(self, name, robots):
        """Return a new partner for the robot ``partner`` among ``robots``."""
        extra, uri = {"uid": "partner"}, None
        if name == "varied_body":
            extra |= {"partner": "random_actions", "delay_steps": "2", "loss": "0.3"}
        elif name == "swapped":
            extra |= {"partner": "crossing_wanderer", "then": "random_actions", "step": "7"}
        elif "action_dim" in partner_card(name).options:
            extra["action_dim"] = "2"
        elif name in NETWORKS:
            uri = self._network(name, state_dim(robots))
        elif name in LEARNED:
            uri = "local://artifacts/policy"
        if name == "crossformer_zero_shot":
            extra |= {"dataset": "two"}
        if name == "openvla_lora_specialist":
            extra |= {"instruction": "meet", "action_map": "0,1", "policy_hz": "4"}
            return OpenVLAPartner(
                PartnerSpec(name, 0, weights_uri=uri, extra=extra), backend=EchoBackend()
            )
        return load_partner(PartnerSpec(name, 0, weights_uri=uri, extra=extra))

    def close(self):
        """End what was started."""
        close_processes()

    def _network(self, name, width):
        """Write a network of two actions, if need be, and return its address."""
        file = f"{name}_{width}.{'onnx' if name == 'onnx' else 'pt'}"
        if not (self._folder / file).exists():
            generator = torch.Generator().manual_seed(width)
            if name == "policy":
                actor = GaussianActor(width, 2, hidden_sizes=(8,), generator=generator)
                save_policy_file(actor.network(), self._folder / file)
            elif name == "onnx":
                self._write_onnx(file, torch.randn((width, 2), generator=generator))
            else:
                self._store(file, name, width, generator)
        return f"local://artifacts/{file}"

    def _store(self, file, name, width, generator):
        shapes = {"fc1": (8, width), "fc2": (8, 8), "head": (2, 8)}
        state = {
            f"{layer}.{kind}": torch.randn(
                shape if kind == "weight" else shape[:1], generator=generator
            )
            for layer, shape in shapes.items()
            for kind in ("weight", "bias")
        }
        if name == "frozen_harl":
            state = GaussianActor(width, 2, hidden_sizes=(8,), generator=generator).state_dict()
        metadata = CheckpointMetadata(run_id="r", seed=0, step=1, git_sha="g", pyproject_hash="p")
        save_checkpoint(
            state_dict={
                "actor": state,
                "activation_func": "relu" if name == "frozen_harl" else "tanh",
            },
            uri=f"local://{file}",
            metadata=metadata,
            artifacts_root=self._folder,
        )

    def _write_onnx(self, file, weights):
        from onnx import helper

        ends = [
            helper.make_tensor_value_info(name, 1, ["N", size])
            for name, size in zip(("obs", "actions"), weights.shape, strict=True)
        ]
        node = helper.make_node("MatMul", ["obs", "weights"], ["actions"])
        constant = helper.make_tensor("weights", 1, weights.shape, weights.flatten().tolist())
        graph = helper.make_graph([node], "policy", ends[:1], ends[1:], [constant])
        opset = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        (self._folder / file).write_bytes(model.SerializeToString())
