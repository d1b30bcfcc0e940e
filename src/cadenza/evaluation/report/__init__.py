"""Report: one self-contained HTML file about one evaluation.

Start at:    `view.ReportView` (what to show) and `render.render_report` (how it looks).
Promise:     no network, every text escaped, equal views give equal bytes, readable without scripts.
May import:  `core`, `evaluation.results`, `evaluation.statistics`.
Adding one:  a figure is one function in `figures/` and one entry in `render.py`.
"""
