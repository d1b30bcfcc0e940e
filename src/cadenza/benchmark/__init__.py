"""Benchmark: tasks, evaluation runs and sealed results.

Start at:    `quickstart.run_quickstart` (everything), `evaluation_run.run_evaluation` (one plan),
             `verify.verify_bundle_dir` (somebody's result).
Promise:     results are a pure function of the plan: workers, order and restarts change no byte.
May import:  everything below `loop`.
Adding one:  a task is one entry in `tasks.py` plus its environment in `envs`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.aht.ego_ppo import EgoPPOTrainer as EgoPPOTrainer
    from cadenza.envs.maniskill.stage0 import make_stage0_env as make_stage0_env
    from cadenza.envs.maniskill.stage0 import make_stage0_training_env as make_stage0_training_env
    from cadenza.learn.advantages import compute_gae as compute_gae
    from cadenza.learn.advantages import normalize_advantages as normalize_advantages

    from .builders import build_bounds_for_env as build_bounds_for_env
    from .builders import build_control_models as build_control_models
    from .builders import build_emergency_controllers as build_emergency_controllers
    from .builders import build_env as build_env
    from .builders import build_partner as build_partner
    from .builders import build_safety_dt as build_safety_dt
    from .builders import build_safety_filter as build_safety_filter
    from .builders import build_safety_snapshot_builder as build_safety_snapshot_builder
    from .training import EgoActionFactory as EgoActionFactory
    from .training import TrainedPolicyFactory as TrainedPolicyFactory
    from .training import run_training as run_training
else:
    __dir__, __getattr__ = lazy_names(__name__)
