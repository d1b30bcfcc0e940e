"""Verifications that several tests read: each is played once per process."""

import functools

from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.run import verify

verified = functools.cache(verify)

#: One partner that decides twice per step, seen at once and late.
ONE = VerifierConfig(
    steps=4000,
    dims=(2,),
    plants=("zoh",),
    dts=(0.05,),
    partners=(1,),
    delays=("none", "varying"),
    stationary=False,
    pieces=2,
    ego_nominals=("drive_at", "drive_at_shaken"),
)
