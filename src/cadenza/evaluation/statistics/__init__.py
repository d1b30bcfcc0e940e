"""Statistics: estimates with intervals over episodes that come in clusters of one seed.

Start at:    `estimate.rate_estimate` (success, contact), `mean_estimate` (returns, distances),
             `comparison.compare` and `rank` (one method against others, with a verdict),
             `paired.paired_comparison` (with against without), `scores.ScoreTensor` (many methods,
             partners and seeds), `power` (before a run), `multiplicity` (many questions),
             `sequential` (asked again after every pair or seed), `resampling` (the kernels).
Promise:     an estimate names its estimator; nothing undefined is hidden in NaN; no interval has
             zero width only because nothing happened.
May import:  `core`, `evaluation.results`.
Adding one:  an interval method is one class in `cluster_means.py` with `name` and `interval`.
"""
