"""A partner that plays a member of a zoo, as `cadenza.partners.zoo_manifest` lays it out.

Weights:   the bytes that are loaded must have the digest that the zoo's sealed manifest names; the
           tensors are hashed when they are loaded and again at every reset.
Action:    the mean, or the most probable choice; with ``deterministic=False`` a draw from the
           partner's own generator, one per row.
Axes:      N = rows, O = state, A = action, C = choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, ConfigurationError, IntegrityError
from cadenza.partners.frozen import FrozenNetworkPartner
from cadenza.partners.interface import PartnerCard
from cadenza.partners.registry import register_partner
from cadenza.partners.spec import PartnerSpec
from cadenza.partners.weights import require_digest

if TYPE_CHECKING:
    from cadenza.learn.nn.portable import PortableNetwork
    from cadenza.partners.zoo_manifest import ZooManifest

#: Key of the partner's policy in a member's checkpoint; the ego's is `POLICY_KEY`.
PARTNER_POLICY_KEY: Final = "partner_policy"
#: Name the class is registered under.
ZOO_MEMBER: Final = "zoo_member"


class MemberPolicies(NamedTuple):
    """Policies of a member's checkpoint."""

    ego: "PortableNetwork"
    partner: "PortableNetwork"

    def state_dict(self) -> dict[str, Any]:
        """Return the payload of a checkpoint, plain values and tensors."""
        from cadenza.learn.nn.portable import POLICY_KEY

        return {POLICY_KEY: self.ego.state_dict(), PARTNER_POLICY_KEY: self.partner.state_dict()}

    def networks(self, **facts: Any) -> "dict[str, PortableNetwork]":
        """Return both as policy files hold them, by seat."""
        pairs = zip(("ego", "partner"), self, strict=True)
        return {seat: replace(network, seat=seat, **facts) for seat, network in pairs}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "MemberPolicies":
        """Return what `state_dict` described."""
        from cadenza.learn.nn.portable import POLICY_KEY, PortableNetwork

        missing = {POLICY_KEY, PARTNER_POLICY_KEY} - set(state)
        if missing:
            raise CheckpointError(
                f"zoo member: expected a checkpoint of `cadenza zoo train`, got one without "
                f"{', '.join(sorted(missing))}; name a file of a zoo's folder 'members'."
            )
        told = (state[key] for key in (POLICY_KEY, PARTNER_POLICY_KEY))
        return cls(*map(PortableNetwork.from_state_dict, told))


def load_member(folder: Path, name: str) -> MemberPolicies:
    """Return the policies of member ``name`` of the zoo in ``folder``.

    Raises:
        IntegrityError: The manifest was changed, or the member is not the one that it names.
        CheckpointError: The checkpoint is missing or damaged.
        UnknownNameError: There is no such member.
    """
    from cadenza.core.checkpoints import load_checkpoint
    from cadenza.partners.zoo_manifest import read_manifest

    member = read_manifest(folder).member(name)
    payload, metadata = load_checkpoint(uri=f"local://{member.file}", artifacts_root=folder)
    if metadata.sha256 != member.sha256:
        raise IntegrityError(
            f"zoo member {name!r} of {folder}: expected the weights with SHA-256 {member.sha256} "
            f"that its manifest names, got {metadata.sha256}; restore the file or train it again."
        )
    return MemberPolicies.from_state_dict(payload)


def verify_members(folder: Path, manifest: "ZooManifest") -> None:
    """Raise unless every learned member is the one of the manifest, and so are policy files of it.

    Raises:
        IntegrityError: One is not.
        CheckpointError: One is missing or damaged.
    """
    from cadenza.learn.nn.portable import load_policy_file, policy_path

    for member in manifest.members:
        if member.sha256 is None:
            continue
        policies = load_member(folder, member.name).networks(task={"id": manifest.task})
        for seat, network in policies.items():
            path = policy_path(folder / member.file, seat)
            if path.is_file() and load_policy_file(path).content_id != network.content_id:
                raise IntegrityError(
                    f"{path}: expected the policy of {member.name!r}, got another one; restore the "
                    "file, or play the member's checkpoint."
                )


@register_partner(ZOO_MEMBER)
class ZooMemberPartner(FrozenNetworkPartner):
    """Plays a member of a zoo that ``cadenza zoo train`` made.

    ``weights_uri`` is ``local://<zoo>/members/<name>.pt``, relative to the folder that the option
    ``root`` names.

    Raises:
        ConfigurationError: ``weights_uri`` is missing or not of this form, or an option is unknown.
    """

    own_options: ClassVar[tuple[str, ...]] = ("root",)
    default_uid = "partner"
    card: ClassVar[PartnerCard | None] = PartnerCard(
        summary="Plays a learned member of a partner zoo (cadenza zoo train).",
        options={
            "uid": "robot it drives",
            "root": "folder that its address is relative to (default: the current one)",
        },
    )

    def __init__(self, spec: PartnerSpec) -> None:
        uri = spec.weights_uri or ""
        relative = Path(uri.removeprefix("local://"))
        is_member = relative.parent.name == "members" and relative.suffix == ".pt"
        is_confined = not relative.is_absolute() and ".." not in relative.parts
        if not (uri.startswith("local://") and is_member and is_confined):
            raise ConfigurationError(
                f"{type(self).__name__}: expected weights_uri 'local://<zoo>/members/<name>.pt', "
                f"got {spec.weights_uri!r}; `cadenza zoo show` prints the members of a zoo."
            )
        super().__init__(spec)
        self._folder = Path(spec.extra.get("root", "")) / relative.parent.parent
        self._name = relative.stem

    def read_network(self) -> "PortableNetwork":
        """Return the partner's policy of the member."""
        from cadenza.partners.zoo_manifest import read_manifest

        named = read_manifest(self._folder).member(self._name)
        require_digest(type(self).__name__, self._spec, str(named.sha256))
        return load_member(self._folder, self._name).partner

    def _noise(self, rows: Sequence[int], width: int) -> Float32Array:
        if self.network.num_choices is not None:
            return super()._noise(rows, width)
        # In double precision, unlike other partners: recorded draws stay what they were.
        rngs = [self.generators[row] for row in rows]
        return np.array([rng.standard_normal(width) for rng in rngs], dtype=np.float32)
