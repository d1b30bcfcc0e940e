"""Reporting: safety results in three tables, as data with a checksum and as text.

Start at:    `ThreeTableReport` (the tables), `emit_three_tables` and `parse_three_tables` (files).
Promise:     equal reports give equal bytes; a file that was changed after it was written is
             refused; a kill while writing leaves the old file or the new one.
May import:  `core` and the modules of `safety`.
Layout:      `report` (rows, the report and its hashes), `rendering` (text, files).
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .rendering import emit_three_tables as emit_three_tables
    from .rendering import parse_three_tables as parse_three_tables
    from .rendering import render_latex as render_latex
    from .rendering import render_markdown as render_markdown
    from .rendering import render_three_table_safety_report as render_three_table_safety_report
    from .rendering import verify_markdown as verify_markdown
    from .report import SCHEMA_VERSION as SCHEMA_VERSION
    from .report import AssumptionRow as AssumptionRow
    from .report import ConditionDetails as ConditionDetails
    from .report import ConditionRow as ConditionRow
    from .report import GapRow as GapRow
    from .report import ReportDetails as ReportDetails
    from .report import SlackAggregate as SlackAggregate
    from .report import ThreeTableReport as ThreeTableReport
    from .report import aggregate_oscbf_slack as aggregate_oscbf_slack
    from .report import make_condition_row as make_condition_row
else:
    __dir__, __getattr__ = lazy_names(__name__)
