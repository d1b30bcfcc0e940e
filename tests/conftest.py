"""Hypothesis profiles: `make test` draws the same examples every time, `make explore` new ones."""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", print_blob=True)
settings.load_profile(os.environ.get("CADENZA_HYPOTHESIS", "fixed"))
