"""Identity of a frozen partner: what to build, and two hashes that name it.

`partner_id` keeps the historical material, ``repr((class_name, seed, checkpoint_step,
weights_uri))``, so that ids recorded elsewhere stay valid; it names *which* partner it is.
`content_id` also covers the behavioural options, the bytes of the weights, and the code of a class
that another package registered; it names *how* the partner behaves, so two heuristics with
different targets differ in it. For that code the table of registered classes stands here, too;
`cadenza.partners.registry` fills it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, SupportsIndex, final

import numpy as np

from cadenza.core.errors import InputError, IntegrityError, StorageError
from cadenza.core.files import (
    canonical_json,
    confined_path,
    is_safetensors,
    sha256_file,
    tree_digest,
)
from cadenza.core.plug_ins import PlugIns
from cadenza.core.provenance import outside_code

#: Environment variables that name the folder; the first that is set counts.
ARTIFACTS_VARIABLES: Final = ("CADENZA_ARTIFACTS_ROOT", "CONCERTO_ARTIFACTS_ROOT")
#: How addresses below a folder begin, and those below the artifacts folder.
_LOCAL_SCHEME: Final = "local://"
ARTIFACTS_SCHEME: Final = "local://artifacts/"
#: Options that say where a partner sits, not who it is.
_SEAT_OPTIONS: Final = frozenset({"uid", "root", "task", "action_dim"})
#: Hex digits of `PartnerSpec.partner_id`: 64 bits, the width of the wire key ``meta.partner_id``.
PARTNER_ID_LENGTH: Final = 16
_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}")
#: Modules whose import registers the partners of this package.
_BUILT_IN_MODULES: Final = (
    "cadenza.partners.scripted_heuristic",
    "cadenza.partners.crossing",
    "cadenza.partners.any_task",
    "cadenza.partners.frozen",
    "cadenza.partners.openvla",
    "cadenza.partners.remote",
    "cadenza.partners.cocarry",
    "cadenza.partners.foraging",
    "cadenza.partners.zoo_member",
    "cadenza.partners.varied_body",
    "cadenza.partners.swapped",
    "cadenza.partners.handover",
    "cadenza.partners.doorway",
)
plug_ins: Final = PlugIns("cadenza.partners", _BUILT_IN_MODULES)
#: The classes known to this process by name.
registered_classes: Final[dict[str, type]] = {}


@final
class FrozenOptions(Mapping[str, str]):
    """Read-only, hashable, picklable text options; compares equal to a dict of the same items."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str]) -> None:
        self._items = dict(sorted(items.items()))

    def __getitem__(self, key: str) -> str:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True, slots=True)
class PartnerSpec:
    """What to load: a registered class, its training identity and its options.

    Field types are coerced to plain Python values, because `partner_id` hashes their ``repr``.
    Equal specs have equal hashes; the hash covers the identity fields only.

    Attributes:
        class_name: Registered name, see `cadenza.partners.registry`.
        seed: Training seed, >= 0; 0 for a scripted partner.
        checkpoint_step: Training step of the weights, >= 0; None for a scripted partner.
        weights_uri: Where the weights are, e.g. ``local://artifacts/x.pt``; None without weights.
        extra: Options of the class and free metadata, text to text; read-only.
        weights_sha256: Hex digest of the weights' bytes, if known; part of `content_id` only.

    Raises:
        InputError: A field has the wrong type or range.
    """

    class_name: str
    seed: int
    checkpoint_step: int | None = None
    weights_uri: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    weights_sha256: str | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        coerced = {
            "class_name": _text("class_name", self.class_name),
            "seed": _whole_number("seed", self.seed),
            "checkpoint_step": None
            if self.checkpoint_step is None
            else _whole_number("checkpoint_step", self.checkpoint_step),
            "weights_uri": None
            if self.weights_uri is None
            else _text("weights_uri", self.weights_uri),
            "extra": _options(self.extra),
            "weights_sha256": _digest(self.weights_sha256),
        }
        for name, value in coerced.items():
            object.__setattr__(self, name, value)

    @property
    def partner_id(self) -> str:
        """First 16 hex digits of SHA-256 over the ``repr`` of the four identity fields."""
        material = repr((self.class_name, self.seed, self.checkpoint_step, self.weights_uri))
        return sha256(material.encode("utf-8")).hexdigest()[:PARTNER_ID_LENGTH]

    @property
    def content_id(self) -> str:
        """SHA-256 (64 hex digits) of the canonical JSON of every field, and of the class's code.

        Without ``weights_sha256`` the digest of the local weights as they are now counts, if they
        are there. A class of this package adds no code: the version of the package stands for it.
        """
        material: dict[str, object] = {
            "class_name": self.class_name,
            "seed": self.seed,
            "checkpoint_step": self.checkpoint_step,
            "weights_uri": self.weights_uri,
            "extra": dict(self.extra),
            "weights_sha256": self.weights_sha256
            or found_digest(self.weights_uri, self.extra.get("root")),
        }
        code = code_of(self.class_name)
        if code:
            material["code"] = code
        return sha256(canonical_json(material)).hexdigest()

    @property
    def known_as(self) -> str:
        """Who it is, wherever it sits and its weights lie; what egos' files name partners by.

        ``name@sha256`` of weights, else the class with its options: ``crossing_wanderer`` or
        ``crossing_wanderer(max_speed=0.4)``.
        """
        if self.weights_uri is not None:
            digest = self.weights_sha256 or found_digest(self.weights_uri, self.extra.get("root"))
            return f"{Path(self.weights_uri).stem}@{digest}"
        options = (f"{k}={v}" for k, v in self.extra.items() if k not in _SEAT_OPTIONS)
        told = ", ".join(options)
        return f"{self.class_name}({told})" if told else self.class_name


def artifacts_folder() -> Path:
    """Return the folder that holds weights; it need not exist."""
    named = (os.environ.get(variable) for variable in ARTIFACTS_VARIABLES)
    return Path(next(filter(None, named), "artifacts"))


def found_digest(uri: str | None, root: str | None) -> str | None:
    """Return the SHA-256 of the file or folder behind ``uri`` as it is now; None without one.

    Addresses are relative to ``root``, or without one to where `load_weights` looks.
    """
    if uri is None or not uri.startswith(_LOCAL_SCHEME):
        return None
    is_artifact = root is None and uri.startswith(ARTIFACTS_SCHEME)
    scheme = ARTIFACTS_SCHEME if is_artifact else _LOCAL_SCHEME
    folder = artifacts_folder() if is_artifact else Path(root or "")
    try:
        path = confined_path(folder, uri.removeprefix(scheme))
        return tree_digest(path) if path.is_dir() else file_digest(path)
    except (OSError, StorageError, IntegrityError):  # nothing there that could be loaded
        return None


def file_digest(path: Path) -> str:
    """Return the content id of a policy file, the SHA-256 of the bytes of another file.

    Raises:
        CheckpointError: It is a damaged policy file.
    """
    if not is_safetensors(path):
        return sha256_file(path)
    from cadenza.learn.nn.portable import load_policy_file  # imports torch

    return load_policy_file(path).content_id


def code_of(class_name: str) -> dict[str, str]:
    """Return `outside_code` of the class called ``class_name``; nothing for an unknown name."""
    plug_ins.load()
    return outside_code(*filter(None, [registered_classes.get(class_name)]))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"PartnerSpec.{name}: expected non-empty text, got {value!r}.")
    return str(value)


def _whole_number(name: str, value: object) -> int:
    if type(value) in (bool, np.bool_) or not isinstance(value, SupportsIndex):
        raise InputError(
            f"PartnerSpec.{name}: expected an integer, got {value!r} of type "
            f"{type(value).__name__}; True and 1 would name two different partners."
        )
    number = value.__index__()
    if number < 0:
        raise InputError(f"PartnerSpec.{name}: expected an integer >= 0, got {number}.")
    return number


def _options(value: object) -> FrozenOptions:
    if not isinstance(value, Mapping):
        raise InputError(f"PartnerSpec.extra: expected a mapping, got {type(value).__name__}.")
    items: dict[str, str] = {}
    for key, text in value.items():  # pyright: ignore[reportUnknownVariableType] # checked below
        if not isinstance(key, str) or not isinstance(text, str):
            raise InputError(
                f"PartnerSpec.extra[{key!r}]: expected text to text, got {text!r}; "
                "write numbers as text, for example '0.5'."
            )
        items[str(key)] = str(text)
    return FrozenOptions(items)


def _digest(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _SHA256_HEX.fullmatch(value):
        raise InputError(
            f"PartnerSpec.weights_sha256: expected 64 lower-case hex digits, got {value!r}."
        )
    return str(value)


def make_phase0_draft_zoo() -> list[PartnerSpec]:
    """Return the specs of the draft zoo, scripted, MAPPO and HAPPO; a new list on every call.

    ``cadenza partners train-draft-zoo`` trains the two checkpoints it names.
    """
    return [
        PartnerSpec(
            class_name="scripted_heuristic",
            seed=0,
            extra={
                "uid": "fetch",
                "task": "stage0_smoke",
                "target_xy": "0.0,0.0",
                "action_dim": "2",
            },
        ),
        PartnerSpec(
            class_name="frozen_mappo",
            seed=42,
            checkpoint_step=100_000,
            weights_uri="local://artifacts/mappo_seed42_step100k.pt",
            extra={"uid": "panda_wristcam", "task": "stage0_smoke"},
        ),
        PartnerSpec(
            class_name="frozen_harl",
            seed=7,
            checkpoint_step=50_000,
            weights_uri="local://artifacts/happo_seed7_step50k.pt",
            extra={
                "uid": "allegro_hand_right",
                "task": "stage0_smoke",
                "checkpoint_tier": "50pct_reward",
            },
        ),
    ]
