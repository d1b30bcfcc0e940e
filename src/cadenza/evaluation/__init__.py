"""Evaluation: what was measured, how sure we are, and a report a stranger can read.

Start at:    `results.EpisodeResult` (one episode), `statistics.paired.paired_comparison` (with
             against without), `summary.compute_summary`, `report.render.render_report`.
Promise:     every number carries its interval and the identity of its estimator; equal inputs give
             equal bytes; nothing is dropped without being counted.
May import:  `core`, `learn`, `safety`, `comm`.
Adding one:  an interval method is one class in `statistics/cluster_means.py`; a figure is one
             function in `report/figures/` and one entry in `report/render.py`.
"""
