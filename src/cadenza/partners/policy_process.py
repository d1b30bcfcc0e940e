"""Serves one policy to a partner in another process: a program for another environment's Python.

    python policy_process.py NAME '{"option": "value", ...}'

Wire:      messages on stdin and stdout: length of the header (4 bytes, big endian), the header as
           JSON, the bytes of its arrays. Header: ``fields`` and, per array, name, dtype and shape.
Dialogue:  the process says ``{"ready": true}`` once its policy is loaded, then answers every
           request, arrays and ``{"instruction": ..., "seed": ...}``, by the array ``actions``,
           (H, A) float32. What goes wrong is answered by ``{"error": ...}``, and it ends.
Stdout:    belongs to the dialogue; what libraries print goes to stderr.
Needs:     numpy, and whatever the policy needs; nothing else of this package.
"""

import importlib
import json
import os
import struct
import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, BinaryIO, Final

import numpy as np

#: Longest header and longest arrays of one message, bytes.
MAX_HEADER: Final = 2**20
MAX_ARRAYS: Final = 2**28
_LENGTH: Final = struct.Struct(">I")
#: What may cross: numbers and truth values, never objects.
_DTYPES: Final = ("bool", "uint8", "int64", "float32", "float64")

#: Reads exactly as many bytes as asked for.
Read = Callable[[int], bytes]
#: From arrays by name, an instruction and a seed to actions (H, A).
Policy = Callable[[Mapping[str, Any], str, int], Any]


class WireError(ValueError):
    """A message is malformed."""


def pack(fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """Return a message."""
    ordered = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
        for name, array in ordered.items()
    ]
    header = json.dumps({"fields": dict(fields), "arrays": described}).encode("utf-8")
    bodies = [array.tobytes() for array in ordered.values()]
    return b"".join([_LENGTH.pack(len(header)), header, *bodies])


def unpack(read: Read) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return fields and arrays of the next message.

    Raises:
        WireError: The message is malformed or too long.
    """
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if length > MAX_HEADER:
        raise WireError(f"expected a header of at most {MAX_HEADER} bytes, got {length}")
    try:
        header = json.loads(read(length))
        fields = dict(header["fields"])
        described = [(str(a["name"]), str(a["dtype"]), tuple(a["shape"])) for a in header["arrays"]]
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"expected a header with fields and arrays, got {error}") from error
    arrays: dict[str, Any] = {}
    left = MAX_ARRAYS
    for name, dtype, shape in described:
        if dtype not in _DTYPES or not all(type(n) is int and n >= 0 for n in shape):
            raise WireError(f"array {name!r}: expected one of {_DTYPES}, got {dtype} {shape}")
        size = prod(shape) * np.dtype(dtype).itemsize
        left -= size
        if left < 0:
            raise WireError(f"expected arrays of at most {MAX_ARRAYS} bytes, got more")
        arrays[name] = np.frombuffer(read(size), dtype).reshape(shape)
    return fields, arrays


def lerobot(options: Mapping[str, str]) -> Policy:
    """Load a policy of LeRobot; ``path``, ``device``, ``revision``."""
    torch: Any = importlib.import_module("torch")
    factory = importlib.import_module("lerobot.policies.factory")
    configs = importlib.import_module("lerobot.configs.policies")
    path, device = options["path"], options.get("device", "cpu")
    if "revision" in options:  # the processors of a policy know no revision, a folder has but one
        hub = importlib.import_module("huggingface_hub")
        path = hub.snapshot_download(path, revision=options["revision"])
    config = configs.PreTrainedConfig.from_pretrained(path)
    if getattr(config, "n_obs_steps", 1) != 1:
        raise ValueError(
            f"expected a policy that plans from one observation, got {config.type!r} with "
            f"n_obs_steps = {config.n_obs_steps}; train it with n_obs_steps = 1"
        )
    config.device = device
    policy = factory.get_policy_class(config.type).from_pretrained(path, config=config)
    before, after = factory.make_pre_post_processors(
        config,
        pretrained_path=path,
        preprocessor_overrides={"device_processor": {"device": device}},
    )

    def plan(arrays: Mapping[str, Any], instruction: str, seed: int) -> Any:
        torch.manual_seed(seed)
        batch: dict[str, Any] = {"task": instruction}
        for name, array in arrays.items():
            value = torch.from_numpy(array.copy())
            is_image = value.dtype == torch.uint8
            batch[name] = value.permute(2, 0, 1).float() / 255 if is_image else value.float()
        with torch.no_grad():
            chunk = policy.predict_action_chunk(before(batch))
            steps = [after(chunk[:, step]) for step in range(chunk.shape[1])]
        return torch.cat(steps).float().cpu().numpy()

    return plan


def crossformer(options: Mapping[str, str]) -> Policy:
    """Load CrossFormer; ``path``, ``head``, and the ``dataset`` whose statistics hold."""
    jax: Any = importlib.import_module("jax")
    module = importlib.import_module("crossformer.model.crossformer_model")
    model = module.CrossFormerModel.load_pretrained(options["path"])
    pillow: Any = importlib.import_module("PIL.Image")
    statistics = model.dataset_statistics[options["dataset"]]
    tasks: dict[str, Any] = {}

    def prepared(name: str, array: Any) -> Any:
        if array.dtype == np.uint8:
            return np.asarray(pillow.fromarray(array).resize((224, 224), pillow.LANCZOS))
        if name.startswith("proprio") and name != "proprio_bimanual":
            return (array - statistics[name]["mean"]) / statistics[name]["std"]
        return array

    def plan(arrays: Mapping[str, Any], instruction: str, seed: int) -> Any:
        if instruction not in tasks:
            tasks[instruction] = model.create_tasks(texts=[instruction])
        batch = {name: prepared(name, array)[None, None] for name, array in arrays.items()}
        batch["timestep_pad_mask"] = np.ones((1, 1), dtype=bool)
        actions = model.sample_actions(
            batch,
            tasks[instruction],
            unnormalization_statistics=statistics["action"],
            head_name=options["head"],
            rng=jax.random.PRNGKey(seed),
        )
        return np.asarray(actions)[0]

    return plan


POLICIES: Final[Mapping[str, Callable[[Mapping[str, str]], Policy]]] = {
    "crossformer": crossformer,
    "lerobot": lerobot,
}


def serve(policy: Policy, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the partner closes its end."""

    def read(size: int) -> bytes:
        data = source.read(size)
        if len(data) != size:
            raise EOFError
        return data

    while True:
        try:
            fields, arrays = unpack(read)
        except EOFError:
            return
        actions = policy(arrays, str(fields["instruction"]), int(fields["seed"]))
        sink.write(pack({}, {"actions": np.asarray(actions, dtype=np.float32)}))
        sink.flush()


def main(words: list[str]) -> int:
    """Load the policy that the first word names and serve it; return the exit code."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print
    try:
        policy = POLICIES[words[0]](json.loads(words[1]))
        sink.write(pack({"ready": True}, {}))
        sink.flush()
        serve(policy, sys.stdin.buffer, sink)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the partner has to hear of it
        sink.write(pack({"error": f"{type(error).__name__}: {error}"}, {}))
        sink.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
