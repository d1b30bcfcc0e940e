"""Who may see the dashboard and press its buttons; checked before any page is reached.

Hosts:    a request must name this server; a foreign name that points here is DNS rebinding.
Token:    demanded everywhere but on loopback; browsers send a cookie that the login sets, programs
          the header ``Authorization: Bearer``. Compared in constant time; an address
          that fails ten times a minute waits.
Forms:    a POST comes from this origin and holds a number that fits the visitor's cookie.
Browsers: run and load only this server's own files; no other page frames these.
Source:   OWASP cheat sheets on cross-site request forgery (signed double submit, fetch metadata),
          on sessions and on content security policy.
Limits:   one process; a restart forgets failures, and which sessions were ended early. Visitors
          behind a proxy that `make_server` does not know share one address, and its failures. TLS
          is left to a reverse proxy.
"""

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import shlex
import time
from collections import OrderedDict, deque
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadenza.core.errors import ConfigurationError
from cadenza.loop.requests import DASH_VARIABLE

_logger = logging.getLogger(__name__)

#: Shortest token, characters: 20 of 64 are 120 bits.
MIN_TOKEN: Final = 20
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: Largest form, bytes and fields.
_MAX_BODY: Final = 1 << 16
_MAX_FIELDS: Final = 32
#: Failures of one address within a time, s, and addresses, or ended sessions, that are remembered.
_FAILURES, _WITHIN_S, _REMEMBERED = 10, 60.0, 1024
#: Prefix of an IPv6 network: whoever has one of its addresses has them all.
_NETWORK_BITS: Final = 64
#: How long a login lasts, s.
_SESSION_S: Final = 12 * 3600
SESSION, VISITOR = "cadenza_session", "cadenza_visitor"
#: A host with or without a port; anything else in such a header is refused.
_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on ``host`` can be reached from this machine only."""
    return host in _LOOPBACK


def read_token(host: str, token_file: Path | None, *, is_shared: bool = False) -> str | None:
    """Return the token of a server that listens on ``host``; None without one, on loopback only.

    ``is_shared`` says that a proxy lets others in.

    Raises:
        ConfigurationError: There is none and others could reach the server, or it is too short, or
            its file may be read by others, which is a warning where only this machine is served.
    """
    if token_file is not None:
        source = str(token_file)
        try:
            token = token_file.read_text(encoding="utf-8").strip()
            is_readable = bool(token_file.stat().st_mode & 0o044)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"--token-file {token_file}: expected a file with a token, got '{error}'."
            ) from error
        if is_readable:
            problem = (
                f"--token-file {token_file}: expected a file that only its owner may read, got one "
                f"that others may; run: chmod 600 {shlex.quote(str(token_file))}"
            )
            if is_shared or not is_loopback(host):
                raise ConfigurationError(f"{problem}.")
            _logger.warning("warning: %s", problem)
    else:
        source, token = DASH_VARIABLE, os.environ.get(DASH_VARIABLE, "").strip()
    make = "make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > dash.token"
    if not token and token_file is None:
        if is_loopback(host) and not is_shared:
            return None
        raise ConfigurationError(
            f"--host {host}: expected a token, as others can reach this server, got none; "
            f"{make}; then add --token-file dash.token (or set {DASH_VARIABLE})."
        )
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"{source}: expected a token of at least {MIN_TOKEN} ASCII characters without spaces, "
            f"got {len(token)} characters; {make}."
        )
    return token


class Access:
    """The token, sessions and forms of one server."""

    def __init__(
        self, *, token: str | None = None, host: str = "127.0.0.1", names: Collection[str] = ()
    ) -> None:
        """Serve on ``host``; ``names`` are further ones that requests may be sent to."""
        self._token = token
        self._key = hashlib.sha256(b"cadenza dash " + (token or secrets.token_hex()).encode())
        self._names = {name.lower() for name in (host, *names)} | _LOOPBACK
        self._any_address = not is_loopback(host)
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    @property
    def needs_token(self) -> bool:
        """Whether a token is demanded."""
        return self._token is not None

    def serves(self, host: str) -> bool:
        """Return whether a request may name ``host``, a header with or without a port."""
        found = _HOST.fullmatch(host)
        name = "" if found is None else found[1] or found[2]
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address  # an address cannot be rebound

    def has_token(self, given: str) -> bool:
        """Return whether ``given`` is the token, compared in constant time."""
        wanted = (self._token or "").encode()
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted) and bool(wanted)

    def is_blocked(self, address: str) -> bool:
        """Return whether an address failed too often within the last minute."""
        times = self._failed.get(address, deque[float]())
        while times and times[0] < time.monotonic() - _WITHIN_S:
            times.popleft()
        return len(times) >= _FAILURES

    def note_failure(self, address: str) -> None:
        """Remember that a wrong token came from an address."""
        self._failed.setdefault(address, deque(maxlen=_FAILURES)).append(time.monotonic())
        self._failed.move_to_end(address)
        while len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)

    def new_session(self) -> str:
        """Return the value of the cookie that stands for the token."""
        told = f"{int(time.time()) + _SESSION_S}.{secrets.token_hex(8)}"
        return f"{told}.{self._sign('session', told)}"

    def has_session(self, cookie: str) -> bool:
        """Return whether a cookie belongs to a session that is still open."""
        told, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", told).encode()):
            return False
        return int(told.partition(".")[0]) > time.time() and cookie not in self._ended

    def end_session(self, cookie: str) -> None:
        """End a session early."""
        if self.has_session(cookie):
            self._ended[cookie] = None
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)

    def form_number(self, visitor: str) -> str:
        """Return the number that proves a form to be this visitor's."""
        return self._sign("form", visitor)

    def is_own_form(self, visitor: str, number: str) -> bool:
        """Return whether a form was made for this visitor."""
        given = number.encode("utf-8", "replace")
        return bool(visitor) and hmac.compare_digest(given, self.form_number(visitor).encode())

    def _sign(self, purpose: str, value: str) -> str:
        told = f"{purpose}:{value}".encode("utf-8", "replace")
        return hmac.new(self._key.digest(), told, hashlib.sha256).hexdigest()


class Guard:
    """Middleware around the application: refuses, or passes on with security headers.

    The application finds in the scope: ``access``, ``cookies``, ``visitor`` (its forms' cookie),
    ``form`` (the fields of a POST) and ``by_token`` (whether a program sent the token). It gets no
    header with cookies: some versions of `http.cookies` need minutes for a hostile one.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        cookies = _cookies(headers)
        visitor = cookies.get(VISITOR, "")
        is_new = not (len(visitor) == 32 and visitor.isalnum() and visitor.isascii())
        visitor = secrets.token_hex(16) if is_new else visitor
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"cookie"]
        scope.update(access=self._access, cookies=cookies, visitor=visitor, form={}, by_token=False)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    told.setdefault(name, value)
                if is_new and told.get("content-type", "").startswith("text/html"):
                    told.append("set-cookie", cookie(VISITOR, visitor, scope))
            await send(message)

        refusal = self._refusal(scope, headers, cookies)
        if refusal is None and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            refusal, receive = await self._read_form(scope, headers, receive, is_new=is_new)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers, cookies: dict[str, str]) -> Response | None:
        """Return why a request goes no further; None if it does."""
        access, path = self._access, scope["path"]
        if not access.serves(headers.get("host", "")):
            told = "this server has another name; `cadenza dash --allowed-host NAME` adds one"
            return refuse(scope, 421, told)
        if not access.needs_token or path == "/login" or path.startswith("/static/"):
            return None
        address = address_of(scope)
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if access.is_blocked(address):
                return refuse(scope, 429, "too many wrong tokens; wait a minute")
            if access.has_token(given.strip()):
                scope["by_token"] = True
                return None
            access.note_failure(address)
        elif access.has_session(cookies.get(SESSION, "")):
            return None
        if scope["method"] == "GET" and not path.startswith(("/api/", "/live/", "/metrics")):
            asked = scope["query_string"].decode("latin-1")
            target = f"{path}?{asked}" if asked else path
            return RedirectResponse(f"/login?next={quote(target)}", status_code=303)
        return refuse(scope, 401, "expected the token as 'Authorization: Bearer TOKEN'")

    async def _read_form(
        self, scope: Scope, headers: Headers, receive: Receive, *, is_new: bool
    ) -> tuple[Response | None, Receive]:
        """Read a form into the scope, or return why not; and what the application receives."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] != "http.request":
                return refuse(scope, 400, "the form ended too early"), receive
            if len(body) > _MAX_BODY:
                return refuse(scope, 413, f"expected at most {_MAX_BODY} bytes"), receive
            if not message.get("more_body"):
                break
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return refuse(scope, 415, "expected an HTML form"), receive
        try:
            fields = parse_qsl(body.decode("ascii"), True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            return refuse(scope, 400, "expected an HTML form, got something else"), receive
        scope["form"] = form = dict(fields)
        own = not is_new and self._access.is_own_form(scope["visitor"], form.get("form", ""))
        if not scope["by_token"] and not (own and _is_same_origin(headers)):
            told = "this form is out of date or foreign; load the page again, then send it"
            return refuse(scope, 403, told), receive

        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        return None, replay


def refuse(scope: Scope, status: int, why: str) -> Response:
    """Return a refusal: JSON for programs, text for people."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if status == 429:
        headers["retry-after"] = str(int(_WITHIN_S))
    if scope["path"].startswith("/api/"):
        return JSONResponse({"detail": why}, status_code=status, headers=headers)
    return PlainTextResponse(f"{status}: {why}\n", status_code=status, headers=headers)


def cookie(name: str, value: str, scope: Scope, *, max_age: int = -1) -> str:
    """Return a header that sets a cookie which no script reads."""
    proxied = Headers(scope=scope).get("x-forwarded-proto") == "https"
    secure = "; Secure" if proxied or scope["scheme"] == "https" else ""
    age = "" if max_age < 0 else f"; Max-Age={max_age}"
    return f"{name}={value}; HttpOnly; Path=/; SameSite=Lax{age}{secure}"


def address_of(scope: Scope) -> str:
    """Return the address that a request came from; of IPv6, its network."""
    client: Any = scope.get("client")
    name = str(client[0]) if client else "unknown"
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return name
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))


def _is_same_origin(headers: Headers) -> bool:
    """Return whether the page is this server's by the browser's word; old browsers say nothing."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def _cookies(headers: Headers) -> dict[str, str]:
    """Return cookies by name; of two with the same name the first, which has the longer path."""
    found: dict[str, str] = {}
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.partition("=")
        found.setdefault(name.strip(), value.strip())
    return found
