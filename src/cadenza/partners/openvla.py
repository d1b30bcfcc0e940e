"""OpenVLA as a partner: image and instruction in, one action of seven numbers out.

Source:     arXiv:2406.09246; token layout of ``openvla/openvla-7b``.
Tokens:     action bins are the last 256 of the V = 32000 text tokens. With edges
            e = linspace(-1, 1, 256) and centers c_k = (e_k + e_{k+1}) / 2, k = 0 ... 254:
            token t -> u = c_k with k = clip(V - t - 1, 0, 254);   u -> t = V - digitize(clip(u), e)
Action:     a_d = (u_d + 1) / 2 · (q99_d - q01_d) + q01_d where the mask says so, else u_d:
            x, y, z (m), roll, pitch, yaw (rad) as steps in the robot's base frame, and the gripper,
            0 closed ... 1 open.
Safety:     the model's repository brings code that is run when it is loaded. It runs only with the
            option ``trust_remote_code=yes`` and a commit as ``revision``, or from a local folder
            whose digest the spec names; weights are safetensors.
"""

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, MissingExtraError
from cadenza.core.extras import load_extra
from cadenza.core.files import tree_digest
from cadenza.partners.chunked import (
    CHUNK_OPTIONS,
    Channels,
    ChunkedPolicyPartner,
    rgb_image,
)
from cadenza.partners.interface import PartnerCard
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import ARTIFACTS_SCHEME, local_folder, weights_path

#: Text tokens of the model without padding: 32064 - 64.
VOCABULARY: Final = 32_000
#: Bin edges per action component.
BINS: Final = 256
#: The empty token that training put between prompt and action.
SPACE_TOKEN: Final = 29_871
#: Index of the gripper in an action.
GRIPPER: Final = 6
#: A commit, not a branch or tag, which could move.
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TERM: Final = re.compile(r"(gripper|(\d+))(?:\*(-?\d+(?:\.\d+)?))?")


class EmbodimentMap(Protocol):
    """Turns a VLA action into one of the environment."""

    @property
    def grippers(self) -> Sequence[int]:
        """Components of the environment's action that move a gripper."""
        ...

    def __call__(self, action: FloatArray, channels: Channels) -> FloatArray:
        """Return the environment's action, (A,), for a VLA action (7,) and what the robot sees."""
        ...


class ActionTokenizer:
    """Turns actions in [-1, 1] into tokens and back.

    The ``bins`` are the last of the ``vocabulary`` V text tokens.
    """

    def __init__(self, vocabulary: int = VOCABULARY, bins: int = BINS) -> None:
        self._vocabulary = vocabulary
        self._edges = np.linspace(-1.0, 1.0, bins)
        self._centers = (self._edges[:-1] + self._edges[1:]) / 2.0

    def encode(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of ``actions``, of the same shape; values are clipped to [-1, 1]."""
        return self._vocabulary - np.digitize(np.clip(actions, -1.0, 1.0), self._edges)

    def decode(self, tokens: NDArray[Any]) -> FloatArray:
        """Return the bin centers of ``tokens``, of the same shape; others take the nearest bin."""
        bins = np.clip(self._vocabulary - np.asarray(tokens) - 1, 0, len(self._centers) - 1)
        return self._centers[bins]


class PromptBuilder:
    """Writes the question that the model was trained to answer."""

    def build(self, instruction: str) -> str:
        """Return the prompt for ``instruction``."""
        return f"In: What action should the robot take to {instruction.lower()}?\nOut:"

    def close(self, tokens: Sequence[int], attention: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return tokens and attention mask with the space token at the end, added if missing."""
        if tokens and tokens[-1] == SPACE_TOKEN:
            return list(tokens), list(attention)
        return [*tokens, SPACE_TOKEN], [*attention, 1]


class Backend(Protocol):
    """The model: the only part that needs its libraries."""

    @property
    def norm_stats(self) -> Mapping[str, Any]:
        """Statistics by dataset: ``[key]["action"]`` with ``q01``, ``q99`` and perhaps ``mask``."""
        ...

    def generate(self, image: NDArray[np.uint8], prompt: str, n: int) -> Sequence[int]:
        """Return the ``n`` most likely next tokens, greedily, for an image (H, W, 3)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decode:
    """Tokens, bin centers in [-1, 1] and physical action of one decision, (7,) each."""

    tokens: NDArray[np.int64]
    unit: FloatArray
    action: FloatArray


def unnormalize(unit: FloatArray, statistics: Mapping[str, Any]) -> FloatArray:
    """Return an action in [-1, 1] in physical units, (D,).

    The statistics hold ``q01`` and ``q99``, and ``mask`` if some components are left as they are.
    """
    low, high = np.asarray(statistics["q01"], float), np.asarray(statistics["q99"], float)
    mask = np.asarray(statistics.get("mask", np.ones(low.shape)), dtype=np.bool_)
    return np.where(mask, 0.5 * (unit + 1.0) * (high - low) + low, unit)


def action_statistics(norm_stats: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
    """Return the action statistics of one dataset; ``key`` is None where there is only one."""
    known = ", ".join(sorted(norm_stats))
    if key is None and len(norm_stats) == 1:
        key = next(iter(norm_stats))
    if key is None or key not in norm_stats:
        raise ConfigurationError(
            f"OpenVLAPartner: option 'unnorm_key': expected one of {known}, got {key!r}."
        )
    return cast("Mapping[str, Any]", norm_stats[key]["action"])


class ActionMap:
    """One term per component of the environment's action, commas between.

    A term is the index of a VLA component, perhaps with a factor, ``0*10``, or ``gripper``, which
    is 2 g - 1: -1 closed, 1 open.

    Args:
        text: The terms, e.g. ``"0,1*10,gripper"``.
    """

    def __init__(self, text: str) -> None:
        rows: list[tuple[int, float, float]] = []
        for term in text.split(","):
            match = _TERM.fullmatch(term.strip())
            index = int(match[2] or GRIPPER) if match else BINS
            if match is None or index > GRIPPER:
                raise ConfigurationError(
                    "OpenVLAPartner: option 'action_map': expected terms such as '0', '1*10' or "
                    f"'gripper' with indices 0 to {GRIPPER}, got {term!r}."
                )
            scale = float(match[3] or 1.0)
            rows.append((index, scale, 0.0) if match[2] else (index, 2.0 * scale, -scale))
        self._indices = [row[0] for row in rows]
        self._scales, self._offsets = np.array(rows).T[1:]

    @property
    def grippers(self) -> list[int]:
        """Components of the environment's action that move a gripper."""
        return [place for place, index in enumerate(self._indices) if index == GRIPPER]

    def __call__(self, action: FloatArray, channels: Channels) -> FloatArray:
        """Return the environment's action, (A,)."""
        del channels
        return action[self._indices] * self._scales + self._offsets


class JointMap:
    """Turns the step of the hand into joint steps by damped least squares, gripper last.

    Equation:  Δq = Jᵀ (J Jᵀ + λ² I)⁻¹ [Δx, Δy, Δz, Δroll, Δpitch, Δyaw]

    Args:
        jacobian: From what the robot sees to J, (6, joints), in the base frame.
        damping: λ, > 0; keeps steps finite near singular poses.
    """

    def __init__(self, jacobian: Callable[[Channels], FloatArray], damping: float = 0.05) -> None:
        self._jacobian, self._damping = jacobian, damping
        self.grippers: tuple[int] = (-1,)

    def __call__(self, action: FloatArray, channels: Channels) -> FloatArray:
        """Return joint steps and 2 g - 1, (joints + 1,)."""
        j = self._jacobian(channels)
        regular = j @ j.T + self._damping**2 * np.eye(len(j))
        steps = j.T @ np.linalg.solve(regular, action[:GRIPPER])
        return np.append(steps, 2.0 * action[GRIPPER] - 1.0)


@register_partner("openvla_lora_specialist")
class OpenVLAPartner(ChunkedPolicyPartner):
    """Asks OpenVLA, perhaps with a LoRA adapter, for one action at a time.

    ``weights_uri`` names the model's repository or folder. The action goes through ``action_map``;
    numbers that are not finite become a safe hold.

    Raises:
        InputError: The option ``uid`` or ``weights_uri`` is missing.
        ConfigurationError: An option is missing, unknown or malformed; without a ``backend`` also
            where code of the repository would run unpinned or without ``trust_remote_code=yes``.
    """

    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Asks an OpenVLA model what to do, from one camera and an instruction.",
        options={
            **CHUNK_OPTIONS,
            "instruction": "what the robot is to do",
            "camera": "channel with the image, (H, W, 3) (default rgb)",
            "unnorm_key": "dataset whose statistics scale the action (default: the only one)",
            "action_map": "the environment's action, e.g. '0,1*10,gripper' (default 0,...,gripper)",
            "revision": "commit of the model's repository, 40 hex digits; not for a local folder",
            "trust_remote_code": "'yes' lets the repository's code run",
            "adapter": "address of a LoRA adapter's folder, local://artifacts/...",
            "adapter_sha256": "digest of that folder (cadenza.core.files)",
            "dtype": "bfloat16 (default), float16 or float32",
            "device": "where the model computes (default cuda)",
        },
    )

    def __init__(
        self,
        spec: PartnerSpec,
        *,
        backend: Backend | None = None,
        embodiment: EmbodimentMap | None = None,
    ) -> None:
        super().__init__(spec)
        extra = spec.extra
        instruction = extra.get("instruction", "")
        if not instruction:
            raise ConfigurationError(
                "OpenVLAPartner: option 'instruction': expected text, got none."
            )
        self._prompt = PromptBuilder().build(instruction)
        self._camera = extra.get("camera", "rgb")
        self._map = embodiment or ActionMap(extra.get("action_map", "0,1,2,3,4,5,gripper"))
        self._tokenizer = ActionTokenizer()
        if backend is None:
            _require_pinned(spec)
        self._backend = backend
        self._last: Decode | None = None

    @property
    def last_decode(self) -> Decode | None:
        """Tokens and action of the last decision."""
        return self._last

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the last episode; see `ChunkedPolicyPartner.reset`."""
        super().reset(seed=seed)
        self._last = None

    def plan(
        self, channels: Channels, *, rng: np.random.Generator, deterministic: bool
    ) -> NDArray[Any]:
        """Return one action of the environment, (1, A); decoding is greedy, whatever is asked."""
        del rng, deterministic
        model = self._loaded()
        statistics = action_statistics(model.norm_stats, self.spec.extra.get("unnorm_key"))
        image = rgb_image(type(self).__name__, channels, self._camera)
        count = len(statistics["q01"])
        tokens = np.asarray(model.generate(image, self._prompt, count), dtype=np.int64)
        if tokens.shape != (count,):
            raise InputError(
                f"OpenVLAPartner: expected {count} action tokens, got shape {tokens.shape}."
            )
        unit = self._tokenizer.decode(tokens)
        action = unnormalize(unit, statistics)
        self._last = Decode(tokens=tokens, unit=unit, action=action)
        return self._map(action, channels)[None]

    def hold_action(self, previous: FloatArray) -> FloatArray:
        """Return no motion, and the grippers where they were, (A,)."""
        held = np.zeros_like(previous)
        held[list(self._map.grippers)] = previous[list(self._map.grippers)]
        return held

    def prepare(self) -> None:
        """Load the model if need be."""
        self._loaded()

    def _loaded(self) -> Backend:
        if self._backend is None:
            self._backend = TransformersBackend(self.spec)
        return self._backend


class TransformersBackend:
    """OpenVLA through the library transformers (4.40.1 is known to run it)."""

    def __init__(self, spec: PartnerSpec) -> None:
        _require_pinned(spec)
        import torch

        extra, self._torch = spec.extra, cast("Any", torch)
        source = str(spec.weights_uri)
        if source.startswith(ARTIFACTS_SCHEME):
            source = str(local_folder("OpenVLAPartner", spec))
        transformers = _library("transformers")
        pinned: dict[str, Any] = {
            "revision": extra.get("revision"),
            "trust_remote_code": True,
            "local_files_only": True,
        }
        self._device = extra.get("device", "cuda")
        self._dtype = getattr(self._torch, extra.get("dtype", "bfloat16"))
        self._processor = transformers.AutoProcessor.from_pretrained(source, **pinned)
        # Newer releases of transformers renamed the class.
        auto = getattr(transformers, "AutoModelForVision2Seq", None)
        auto = auto or transformers.AutoModelForImageTextToText
        model = auto.from_pretrained(
            source, torch_dtype=self._dtype, use_safetensors=True, **pinned
        )
        self._stats: Mapping[str, Any] = dict(getattr(model, "norm_stats", {}))
        adapter = extra.get("adapter")
        if adapter is not None:
            folder = _adapter_folder(adapter, extra.get("adapter_sha256"))
            peft = _library("peft")
            model = peft.PeftModel.from_pretrained(
                model, str(folder), local_files_only=True
            ).merge_and_unload()
            own = folder / "dataset_statistics.json"
            if own.is_file():
                self._stats = json.loads(own.read_text("utf-8"))
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._prompts = PromptBuilder()

    @property
    def norm_stats(self) -> Mapping[str, Any]:
        """Statistics of the model, or of the adapter where it brings its own."""
        return self._stats

    def generate(self, image: NDArray[np.uint8], prompt: str, n: int) -> Sequence[int]:
        """Return the ``n`` most likely next tokens; see `Backend`."""
        torch = self._torch
        picture = load_extra("PIL.Image").fromarray(image)
        inputs = self._processor(prompt, picture)
        tokens, attention = self._prompts.close(
            inputs["input_ids"][0].tolist(), inputs["attention_mask"][0].tolist()
        )
        with torch.no_grad():
            output = self._model.generate(
                input_ids=torch.tensor([tokens], device=self._device),
                attention_mask=torch.tensor([attention], device=self._device),
                pixel_values=inputs["pixel_values"].to(self._device, dtype=self._dtype),
                max_new_tokens=n,
                min_new_tokens=n,
                do_sample=False,
            )
        return cast("list[int]", output[0, -n:].tolist())


def _library(name: str) -> Any:
    """Import a library of the model; which release runs is the model's business, so no extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"OpenVLAPartner: expected the package {name}, got {error}; run: pip install "
            "'transformers==4.40.1' 'timm>=0.9.10,<1' 'peft==0.11.1'"
        ) from error


def _adapter_folder(uri: str, sha256: str | None) -> Path:
    """Return the folder of a low-rank adapter, checked against its digest."""
    folder = weights_path(uri).resolve()
    if not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(
            f"OpenVLAPartner: option 'adapter': expected adapter_model.safetensors in {folder}, "
            "got none; save the adapter with safe_serialization=True."
        )
    found = tree_digest(folder)
    if found != sha256:
        raise CheckpointError(
            f"OpenVLAPartner: option 'adapter_sha256': expected the adapter's digest, got "
            f"{sha256!r} where {folder} has {found}; restore the folder or correct the option."
        )
    return folder


def _require_pinned(spec: PartnerSpec) -> None:
    """Raise unless the user said which code may run, and that it may."""
    extra = spec.extra
    if spec.weights_uri is None:
        raise InputError(
            "OpenVLAPartner: expected PartnerSpec.weights_uri, got None; name the model, e.g. "
            "'openvla/openvla-7b'."
        )
    is_local = spec.weights_uri.startswith(ARTIFACTS_SCHEME)
    if is_local and spec.weights_sha256 is None:
        raise ConfigurationError(
            "OpenVLAPartner: expected PartnerSpec.weights_sha256 for a local folder, got None; its "
            "code could change: name the digest of `cadenza.core.files`."
        )
    if not is_local and not _COMMIT.fullmatch(extra.get("revision", "")):
        raise ConfigurationError(
            "OpenVLAPartner: option 'revision': expected a commit of 40 hex digits, got "
            f"{extra.get('revision')!r}; a branch or tag can change what is loaded."
        )
    if extra.get("trust_remote_code") != "yes":
        raise ConfigurationError(
            "OpenVLAPartner: option 'trust_remote_code': expected 'yes', got "
            f"{extra.get('trust_remote_code')!r}; the model's repository brings code that runs on "
            "this machine, so read it at that revision first."
        )
