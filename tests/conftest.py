"""Hypothesis profiles: `make test` draws the same examples every time, `make explore` new ones."""

import os

from hypothesis import settings

# No deadline: how long an example takes says more about the machine than about the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("CADENZA_HYPOTHESIS", "fixed"))
