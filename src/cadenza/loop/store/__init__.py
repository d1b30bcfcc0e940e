"""Store: what a loop run must not forget, in SQLite or PostgreSQL.

Start at:    `JobStore`; `changes` for what `JobStore.commit` can change beside the state.
Promise:     a commit happens whole or not at all; a controller that lost its lease changes
             nothing; at most one policy of a run is blessed; an event has one number for ever.
Adding one:  a column goes into `schema` or `rows`, and `schema.upgrade` adds it to older stores.
Import time: `JobStore` and `changes` load SQLAlchemy, so both are imported at first use.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .jobstore import JobStore as JobStore
else:
    __dir__, __getattr__ = lazy_names(__name__)
