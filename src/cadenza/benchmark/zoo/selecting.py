"""Selection on the members of zoos: probe states, action distributions, a new sealed zoo.

Probe states:  partner states met beside each candidate's counterpart, equally many of every
               candidate, drawn from the stream ``zoo.probe``.
Axes:          n = candidates, M = probe states, O = state, A = action.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.output_folder import (
    OutputMode,
    claim,
    open_output_folder,
    require_outside,
)
from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.events import events_of
from cadenza.benchmark.zoo.jobs import REQUEST_NAME
from cadenza.benchmark.zoo.matrix import ZooEntry, open_zoos, settings_of
from cadenza.benchmark.zoo.pairs import PairEnv, PairEpisodes, PairPolicy, open_pairs, play
from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import canonical_json, make_folder
from cadenza.core.seeding import derive_substream
from cadenza.partners.interface import PartnerBase
from cadenza.partners.registry import load_partner
from cadenza.partners.selection import (
    Criterion,
    ZooCandidate,
    ZooSelection,
    bootstrap_interval,
    log_densities,
    select_zoo,
)
from cadenza.partners.varied_body import VariedBodyPartner
from cadenza.partners.zoo_manifest import (
    MEMBERS_FOLDER,
    ZooManifest,
    compute_split,
    read_manifest,
    write_manifest,
)
from cadenza.partners.zoo_member import ZOO_MEMBER, load_member

#: Probe states in all, about, and episodes that they are drawn from, for each candidate.
PROBE_STATES: Final = 512
_EPISODES: Final = 16
#: Logit of what a scripted partner chooses, beside 0 of everything else.
_CERTAIN: Final = 20.0
_KIND: Final = "zoo selection"


def select_members(
    folders: Sequence[Path],
    *,
    size: int,
    criterion: Criterion,
    out: Path,
    quota: Mapping[str, int] | None = None,
    floor: float | None = None,
    seed: int = 0,
    mode: OutputMode = "new",
) -> tuple[ZooManifest, ZooSelection]:
    """Choose members of zoos of one task and seal them as a zoo of its own.

    Public members are split anew by `compute_split` over their digests; held-out families stay so.

    Raises:
        ConfigurationError: The zoos do not fit together, or the folder is in use or holds one.
        InputError: A member lacks what the criterion reads.
        IntegrityError: A member is not the one that its manifest names.
    """
    if mode == "overwrite":
        require_outside(out, folders)
    manifest, entries = open_zoos(folders)
    candidates = probed(manifest, entries, seed=seed, probe=criterion in ("jsd", "pe"))
    selection = select_zoo(
        candidates,
        size=size,
        criterion=criterion,
        stratum_quota=quota,
        floor=floor,
        root_seed=seed,
    )
    by_name = {entry.member.name: entry for entry in entries}
    chosen = [by_name[name] for name in selection.names]
    ids = {e.member.name: f"{e.member.sha256} {e.member.name}" for e in chosen}
    split = compute_split(ids[e.member.name] for e in chosen if e.member.split == "public")
    sealed = manifest.model_copy(
        update={
            "members": tuple(
                entry.member.model_copy(
                    update={"split": split.get(ids[entry.member.name], "held_out")}
                )
                for entry in chosen
            ),
            "requests": [{"zoos": [str(folder) for folder in folders], "size": size, "seed": seed}],
            "selection": json.loads(canonical_json(asdict(selection))),  # tuples become lists
        }
    )
    with open_output_folder(out, mode=mode):
        claim(out / REQUEST_NAME, sealed.requests[0], kind=_KIND)
        make_folder(out / MEMBERS_FOLDER)
        for entry in chosen:
            if entry.member.sha256 is not None:
                load_member(entry.folder, entry.member.name)  # refuses what was changed
                for path in (entry.folder / MEMBERS_FOLDER).glob(f"{entry.member.name}.*"):
                    shutil.copyfile(path, out / MEMBERS_FOLDER / path.name)
        write_manifest(out, sealed)
    return sealed, selection


def family_diversity(folders: Sequence[Path], *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return how much the final members of each family differ, as JSON values by family.

    The measure is the Jensen-Shannon divergence of as many members of each family, nats, with its
    95 % interval over probe states; ``minus_fcp`` is the paired difference to the family ``fcp``.
    Nothing without a learned member.
    """
    manifest, entries = open_zoos(folders)
    entries = [entry for entry in entries if entry.member.tier == "final"]
    families: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        families.setdefault(entry.member.family, []).append(index)
    size = min(map(len, families.values()), default=0)
    if size < 2 or all(entry.member.counterpart is None for entry in entries):
        return {}  # nobody to compare, or no learned ego beside whom they would be met
    densities = log_densities(probed(manifest, entries, seed=seed, probe=True), root_seed=seed)
    scores = {name: densities.diversity(k[:size], "jsd") for name, k in families.items()}

    def told(values: NDArray[Any]) -> list[float]:
        return [float(values.mean()), *bootstrap_interval(values, seed)]

    base = scores.get("fcp")
    return {
        name: {
            "members": size,
            "jsd": told(score),
            "minus_fcp": None if base is None or name == "fcp" else told(score - base),
        }
        for name, score in scores.items()
    }


def probed(
    manifest: ZooManifest, entries: Sequence[ZooEntry], *, seed: int, probe: bool
) -> list[ZooCandidate]:
    """Return the members as candidates, with their actions on common probe states if ``probe``."""
    actions: list[tuple[NDArray[Any], NDArray[Any] | None, bool]] = []
    if probe:
        config = settings_of(manifest, seed=seed)
        with single_torch_thread(), closing(open_pairs(config, _EPISODES)) as env:
            states = _probe_states(env, config, entries)
            actions = [_distribution(env, entry, states) for entry in entries]
    return [
        ZooCandidate(
            name=entry.member.name,
            tier=entry.member.tier,
            skill=None if entry.member.skill is None else entry.member.skill.value,
            skill_low=None if entry.member.skill is None else entry.member.skill.low,
            group=entry.member.family,
            actions=actions[k][0] if probe else None,
            deviation=actions[k][1] if probe else None,
            chooses=probe and actions[k][2],
            features=np.array([entry.member.features[n] for n in sorted(entry.member.features)]),
        )
        for k, entry in enumerate(entries)
    ]


def _probe_states(
    env: PairEnv, config: ZooConfig, entries: Sequence[ZooEntry]
) -> NDArray[np.float32]:
    """Return the partner's states that candidates meet, (M, O)."""
    rng = derive_substream("zoo.probe", root_seed=config.seed).default_rng()
    each = -(-PROBE_STATES // len(entries))
    met: list[NDArray[Any]] = []
    for entry in entries:
        ego = _counterpart(env, entry, entries)
        seed = derive_substream(f"zoo.probe.{entry.member.name}", root_seed=config.seed)
        states = play_pair(env, config, ego, entry, seed=seed.integer_seed()).states
        flat = states.reshape(-1, states.shape[-1])
        met.append(flat[rng.integers(len(flat), size=each)])
    return np.concatenate(met)[:, : env.observation_dims[1]]


def _counterpart(env: PairEnv, entry: ZooEntry, entries: Sequence[ZooEntry]) -> PairPolicy:
    """Return the ego beside which a candidate is met: its own, else the first learned one's.

    Where a zoo was selected without it, that is the ego that the member itself trained with.
    """
    learned = [e for e in (entry, *entries) if e.member.counterpart is not None]
    if not learned:
        raise ConfigurationError(
            "zoo select: expected at least one learned zoo, whose policies meet the scripted "
            "members, got scripted ones only."
        )
    folder, own = learned[0].folder, learned[0].member
    known = {member.name for member in read_manifest(folder).members}
    name = own.counterpart if own.counterpart in known else own.name
    network, width = load_member(folder, name).ego, env.observation_dims[0]
    return lambda states: network.act(states[0][:, :width])


def _distribution(
    env: PairEnv, entry: ZooEntry, states: NDArray[np.float32]
) -> tuple[NDArray[Any], NDArray[Any] | None, bool]:
    """Return actions on the probe states, deviations, and whether the actions are logits."""
    low, high = env.low[1], env.high[1]
    half, middle = (high - low) / 2.0, (high + low) / 2.0
    if entry.member.class_name == ZOO_MEMBER:
        policy = load_member(entry.folder, entry.member.name).partner
        outputs, log_std = policy.outputs(states), policy.output.log_std
        if log_std is None:
            return outputs, None, True
        return (outputs - middle) / half, np.exp(log_std.numpy()) / half, False
    partner = cast("PartnerBase", load_partner(entry.spec(env.uids[1])))
    partner.reset(seed=0)
    seen = {"agent": {env.uids[1]: {"state": states}}}
    if isinstance(partner, VariedBodyPartner):  # states that follow no other: nothing is underway
        partner.bind(env.env.single_action_space[env.uids[1]])
        acted = partner.intention(seen)
    else:
        acted = partner.act(seen)
    if env.choices is not None:
        chosen = acted - low == np.arange(env.choices)
        return np.where(chosen, _CERTAIN, 0.0), None, True
    return (acted - middle) / half, None, False


def play_pair(
    env: PairEnv, config: ZooConfig, ego: PairPolicy, entry: ZooEntry, *, seed: int
) -> PairEpisodes:
    """Play one episode of ``ego`` and a member in every environment."""
    partner = cast("PartnerBase", load_partner(entry.spec(env.uids[1])))
    if env.choices is None:
        partner.bind(env.env.single_action_space[env.uids[1]])
    partner.reset(seed=seed)
    stream = derive_substream("zoo.matrix.partner", root_seed=seed)
    for row, child in enumerate(stream.spawn(env.num_envs)):
        partner.reset_row(row, seed=child.integer_seed())
    return play(
        env,
        ego,
        lambda states: partner.act(env.observation(states)),
        horizon=config.horizon,
        events=events_of(config.task),
        seed=seed,
    )
