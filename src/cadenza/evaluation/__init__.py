"""Evaluation: what was measured, how sure we are, and a report a stranger can read.

Start at:    `results.EpisodeResult` (one episode), `statistics.paired.paired_comparison` (with
             against without), `summary.compute_summary`, `prereg` (what was promised beforehand),
             `leaderboard.leaderboard_entry`, `report.render.render_report`.
Promise:     every number carries its interval and the identity of its estimator; equal inputs give
             equal bytes; nothing is dropped without being counted.
May import:  `core`, `learn`, `safety`, `comm`.
Adding one:  an interval method is one class in `statistics/cluster_means.py`; a figure is one
             function in `report/figures/` and one entry in `report/render.py`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.core.errors import PreregistrationError as PreregistrationError
    from cadenza.safety.reporting.rendering import (
        render_three_table_safety_report as render_three_table_safety_report,
    )
    from cadenza.safety.reporting.report import SlackAggregate as SlackAggregate
    from cadenza.safety.reporting.report import aggregate_oscbf_slack as aggregate_oscbf_slack
    from cadenza.safety.reporting.report import make_condition_row as make_condition_row

    from .bootstrap import BootstrapCI as BootstrapCI
    from .bootstrap import PairedEpisode as PairedEpisode
    from .bootstrap import aggregate_metrics as aggregate_metrics
    from .bootstrap import build_paired_episodes as build_paired_episodes
    from .bootstrap import cluster_bootstrap as cluster_bootstrap
    from .bootstrap import pacluster_bootstrap as pacluster_bootstrap
    from .leaderboard import DEFAULT_AXIS_WEIGHTS as DEFAULT_AXIS_WEIGHTS
    from .leaderboard import ConditionResult as ConditionResult
    from .leaderboard import HRSVector as HRSVector
    from .leaderboard import HRSVectorEntry as HRSVectorEntry
    from .leaderboard import LeaderboardEntry as LeaderboardEntry
    from .leaderboard import compute_hrs_scalar as compute_hrs_scalar
    from .leaderboard import compute_hrs_vector as compute_hrs_vector
    from .leaderboard import render_leaderboard as render_leaderboard
    from .prereg import PreregDocument as PreregDocument
    from .prereg import PreregistrationSpec as PreregistrationSpec
    from .prereg import load_prereg as load_prereg
    from .prereg import load_prereg_document as load_prereg_document
    from .prereg import verify_git_tag as verify_git_tag
    from .results import SCHEMA_VERSION as SCHEMA_VERSION
    from .results import BundleSummary as BundleSummary
    from .results import ConditionPair as ConditionPair
    from .results import EpisodeResult as EpisodeResult
    from .results import PlatformFingerprint as PlatformFingerprint
    from .results import ResultBundle as ResultBundle
    from .results import SeedSchedule as SeedSchedule
    from .results import SpikeRun as SpikeRun
    from .results import load_run_archive as load_run_archive
else:
    __dir__, __getattr__ = lazy_names(__name__)
