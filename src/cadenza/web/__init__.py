"""The dashboard: loop runs and sealed results in a browser, live, on one machine or behind a token.

Start at:    `create_app`, an ASGI application; `cadenza dash` serves it.
Promise:     reads only what runs wrote, opens no path that a visitor names, changes nothing but by
             `cadenza.loop.requests`; no page needs anything from another server.
May import:  `loop`, `benchmark` and lower floors.  Must not import: `cli`.
Adding one:  a module with ``routes(site)``, listed in `app`; a template that extends ``base``.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .app import create_app as create_app
else:
    __dir__, __getattr__ = lazy_names(__name__)
