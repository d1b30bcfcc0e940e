"""Networks, each built from an explicit `torch.Generator`.

Start at:    `ActionValueMlp` and `GaussianMlpPolicy` (off-policy), `policy_networks.Policy`
             and `gaussian_actor.GaussianActor` (on-policy), `layers` (encoders), `curl`.
Promise:     equal generator states give bitwise equal weights; the global generator is untouched.
May import:  `core`.  Must not import: `learn.agents`, `learn.algorithms`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .action_value_mlp import ActionValueMlp as ActionValueMlp
    from .gaussian_policy import GaussianMlpPolicy as GaussianMlpPolicy
    from .gaussian_policy import GaussianPolicyHead as GaussianPolicyHead
    from .initialization import ortho_init_ as ortho_init_
else:
    __dir__, __getattr__ = lazy_names(__name__)
