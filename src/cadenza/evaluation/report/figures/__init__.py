"""Figures: from plain values to SVG.

Start at:    `outcomes.Figure` (what a drawing returns), `outcomes.dot_plot`.
Promise:     no colour in the SVG, only classes; no bar without its spread; equal values give
             equal bytes.
May import:  `evaluation.statistics`, `report.svg`, `report.analysis`.
Adding one:  a function that returns a `Figure`, one entry in `report/render.py`.
"""
