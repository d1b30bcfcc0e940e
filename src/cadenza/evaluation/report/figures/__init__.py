"""Figures: one module per drawing, each from plain values to SVG at two widths.

Start at:    `figure.Figure` (what a drawing returns), `dots.dot_plot` (points with intervals).
Promise:     no colour in the SVG, only classes; no bar without its spread; equal values give
             equal bytes.
May import:  `evaluation.statistics`, `report.svg`, `report.formatting`, `report.analysis`.
Adding one:  one module with a function that returns a `Figure`, one entry in
             `report/render.py`.
"""
