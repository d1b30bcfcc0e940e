"""What code written for CHAMBER's partners calls: names, order of parameters and defaults stay."""

import pytest

import cadenza.partners
from tests.contract.promises import faults, promises

PROMISES = """
[cadenza.partners]
CrossFormerPartner(spec) .spec .reset(*, seed=None) .act(obs, *, deterministic=True)
FrozenHARLPartner(spec) .spec .reset(*, seed=None) .act(obs, *, deterministic=True)
FrozenMAPPOPartner(spec) .spec .reset(*, seed=None) .act(obs, *, deterministic=True)
FrozenPartner .spec .reset(*, seed=None) .act(obs, *, deterministic=True)
OpenVLAPartner(spec) .spec .reset(*, seed=None) .act(obs, *, deterministic=True)
PartnerBase(spec) .spec
PartnerSpec(class_name, seed, checkpoint_step, weights_uri, extra=...) .class_name .seed
    .checkpoint_step .weights_uri .extra .partner_id
ScriptedHeuristicPartner(spec) .spec .reset(*, seed=None) .act(obs, *, deterministic=True)
list_registered()
load_partner(spec)
make_phase0_draft_zoo()
register_partner(class_name)
select_zoo(candidates, *, size, stratum_quota=..., floor=..., alpha_quality=0.0, criterion="jsd",
    sigma_kernel=0.1, root_seed=...)
"""


@pytest.mark.parametrize(
    ("module", "path", "parameters"),
    [pytest.param(*entry, id=f"{entry[0]}:{entry[1]}") for entry in promises(PROMISES)],
)
def test_promise_of_chambers_partners_is_kept(module, path, parameters):
    assert faults(module, path, parameters) == []


def test_names_of_the_package_are_there_and_lazy():
    promised = {path.partition(".")[0] for _, path, _ in promises(PROMISES)}
    listed = set(dir(cadenza.partners))
    assert promised - listed == set()
    assert len(promised) == 13
