"""Networks, each built from an explicit `torch.Generator`.

Start at:    `ActionValueMlp` and `GaussianMlpPolicy` (off-policy), `policy_networks.Policy`
             and `gaussian_actor.GaussianActor` (on-policy), `layers` (encoders), `curl`.
Promise:     equal generator states give bitwise equal weights; the global generator is untouched.
May import:  `core`.  Must not import: `learn.algorithms`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ActionValueMlp": "action_value_mlp",
    "GaussianMlpPolicy": "gaussian_policy",
    "GaussianPolicyHead": "gaussian_policy",
    "ortho_init_": "initialization",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
