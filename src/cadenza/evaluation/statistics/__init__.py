"""Statistics: estimates with intervals over episodes that come in clusters of one seed.

Start at:    `rates.rate_estimate` (success, contact), `means.mean_estimate` (returns, distances),
             `paired.paired_comparison` (with against without),
             `paired_outcomes.paired_outcome_interval` (the same for yes or no, exact),
             `sequential` (the same, asked again after every pair).
Promise:     an estimate names its estimator; nothing undefined is hidden in NaN; no interval has
             zero width only because nothing happened.
May import:  `core`, `evaluation.results`.
Adding one:  an interval method is one class in `cluster_means.py` with `name` and `interval`.
"""
