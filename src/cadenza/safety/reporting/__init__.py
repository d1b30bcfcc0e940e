"""Reporting: safety results in three tables, as data with a checksum and as text.

Start at:    `ThreeTableReport` (the tables), `emit_three_tables` and `parse_three_tables` (files).
Promise:     equal reports give equal bytes; a file that was changed after it was written is
             refused; a kill while writing leaves the old file or the new one.
May import:  `core` and the modules of `safety`.
Layout:      `rows` (values), `report` (the report and its hashes), `rendering` (text, files).
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "SCHEMA_VERSION": "report",
    "AssumptionRow": "rows",
    "ConditionDetails": "rows",
    "ConditionRow": "rows",
    "GapRow": "rows",
    "ReportDetails": "rows",
    "SlackAggregate": "rows",
    "ThreeTableReport": "report",
    "aggregate_oscbf_slack": "rows",
    "emit_three_tables": "rendering",
    "make_condition_row": "rows",
    "parse_three_tables": "rendering",
    "render_latex": "rendering",
    "render_markdown": "rendering",
    "render_three_table_safety_report": "rendering",
    "verify_markdown": "rendering",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
