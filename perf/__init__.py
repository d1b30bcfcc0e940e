"""Speed and scores, measured beside public peers.

`make bench` runs every ``bench_`` module; `scores.py` trains, for minutes to hours.
"""
