"""Access control: which requests are answered, and what a browser may do with the answers.

By default the server listens on this machine only. Four things protect it: a page of another site cannot
reach it under another name (the Host header is checked, against DNS rebinding), cannot start computations (requests
that a browser marks as another site's are refused), cannot read its answers (no cross-origin access), and cannot make
the page load anything from elsewhere (content security policy). If it listens on a network, a browser needs the token
of the printed link; the link works once and sets a cookie.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "asmil_view"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site: a request of the page itself, and one that the user typed. A page on another port of this
machine is "same-site", and is refused."""


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OneTimeLinks:
    """The token that starts a browser session, new after every use, and the secret of the session cookie.

    announce: called with the new token after each use
    """

    def __init__(self, announce: Callable[[str], None] = lambda token: None) -> None:
        self.token = secrets.token_urlsafe(24)
        self.secret = secrets.token_urlsafe(32)
        self._announce = announce

    def use(self, token: str) -> bool:
        """Whether a token starts a session; every token works once."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = secrets.token_urlsafe(24)
        self._announce(self.token)
        return True

    def holds(self, cookie: str) -> bool:
        """Whether a browser has a session."""
        return secrets.compare_digest(cookie.encode(), self.secret.encode())


class AccessControl:
    """Middleware: refuses other hosts, methods that write, and browsers without a session; adds the headers.

    links: None if no session is needed, because the server listens on this machine only
    """

    def __init__(self, app: ASGIApp, host: str, links: OneTimeLinks | None) -> None:
        self._app = app
        self._host = host
        self._links = links

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._refusal(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer to a refused request; None if it is accepted."""
        headers = Headers(scope=scope)
        if not self._is_own_name(headers.get("host", "")):
            return PlainTextResponse("This server does not answer to this name.", 421)
        if not _is_own_request(headers, scope["path"]):
            return PlainTextResponse("This server does not answer to pages of other sites.", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This server only answers GET.", 405)
        if self._links is None:
            return None
        if token := parse_qs(scope["query_string"].decode("latin-1")).get("token"):
            if not self._links.use(token[0]):
                return PlainTextResponse("This link was used before. Use the link that asmil view printed last.", 403)
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self._links.secret, httponly=True, samesite="strict")
            return answer
        if not self._links.holds(_cookie(headers)):
            return PlainTextResponse("Open the link that asmil view printed; it holds the token.", 403)
        return None

    def _is_own_name(self, host: str) -> bool:
        name = _without_port(host)
        if name in LOOPBACK_NAMES or name == self._host.lower():
            return True
        if self._links is None:
            return False
        if name in (socket.gethostname().lower(), socket.getfqdn().lower()):
            return True
        try:
            ipaddress.ip_address(name)  # DNS rebinding needs a name; addresses may be those of a router or container
        except ValueError:
            return False
        return True


def _is_own_request(headers: Headers, path: str) -> bool:
    """Whether a request comes from the page or the user. Programs other than browsers do not send these headers."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        return False
    if headers.get("sec-fetch-site", "none") in OWN_SITES:
        return True
    # a link to the page on another site may be followed, but not shown in a frame
    opens_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return path == "/" and opens_page


def _without_port(host: str) -> str:
    """The name or address of a Host header.

    >>> [_without_port(host) for host in ("localhost:8750", "[::1]:8750", "10.0.0.1")]
    ['localhost', '::1', '10.0.0.1']
    """
    host = host.lower().strip()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _cookie(headers: Headers) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value
