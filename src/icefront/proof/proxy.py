"""A fault proxy in front of a REST catalog: forwards everything, and strikes where it is told to.

    client ──▶ FaultProxy ──▶ catalog          a fault = what the catalog gets × what the client gets

| fault | the catalog gets the request | the client gets |
|---|---|---|
| `lost` | once | its connection closed, no answer |
| `twice-first` | twice | the first answer |
| `twice-second` | twice | the second answer |
| `late-504` | when it is released | 504, at once |
| `late-closed` | when it is released | its connection closed, at once |
| `silent` | when it is released | nothing at all: the connection stays open until then |
| `truncated` | once | half of the answer, then its connection closed |
| `slow` | once | the answer, a few bytes at a time |
| `reset-before`, `reset-after` | never, once | its connection reset |
| `403-before`, `403-after` | never, once | 403, as after a token has run out |
| `409-before`, `409-after` | never, once | 409, a conflict |
| `429-before`, `429-after` | never, once | 429 with Retry-After |
| `500-before`, `500-after` | never, once | 500 |
| `502-before`, `502-after` | never, once | 502, a gateway's page |
| `503-before`, `503-after` | never, once | 503 with Retry-After, a gateway's page |
| `504-before`, `504-after` | never, once | 504, a gateway's page |

Late by themselves, by what is asked of the same table next:

| fault | the catalog gets the request | the client gets |
|---|---|---|
| `late-before-look` | right before the next load of its table, or commit to it | its connection closed, at once |
| `late-before-next` | right before the next commit to its table | 504, at once |
| `late-after-next` | right after the next commit to its table | its connection closed, at once |

    with FaultProxy(catalog_uri) as proxy:
        proxy.arm("lost", nth=3)                      # the third commit from now on
        proxy.arm("503-before", where=loads)          # the next load of a table
        proxy.randomly(Random(7), 0.2)                # from now on, one commit in five
        …                                             # clients use proxy.uri
        proxy.release()                               # late requests reach the catalog now
    assert proxy.struck["lost"] == 1
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

# A catalog may have a path of its own before the version.
_TABLE = re.compile(r"(?:/[^?]+)?/v1/(?:[^?]+/)?namespaces/[^/?]+/tables/[^/?]+(?:\?.*)?")
_OWN_HEADERS = frozenset({"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"})
_PIECES = 24


# ── faults ─────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Fault:
    """What the catalog gets of a request, and what the client gets of the answer; a number is a status."""

    name: str
    catalog: Literal["never", "once", "twice", "late"]
    client: Literal["first", "second", "closed", "reset", "truncated", "slow", "silent"] | int
    until: Literal["released", "before look", "before next", "after next"] = "released"
    """What a late request waits for."""


def _faults() -> Iterator[Fault]:
    yield Fault("lost", "once", "closed")
    yield Fault("twice-first", "twice", "first")
    yield Fault("twice-second", "twice", "second")
    yield Fault("late-504", "late", 504)
    yield Fault("late-closed", "late", "closed")
    yield Fault("silent", "late", "silent")
    yield Fault("truncated", "once", "truncated")
    yield Fault("slow", "once", "slow")
    yield Fault("reset-before", "never", "reset")
    yield Fault("reset-after", "once", "reset")
    for status in (403, 409, 429, 500, 502, 503, 504):
        yield Fault(f"{status}-before", "never", status)
        yield Fault(f"{status}-after", "once", status)


FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _faults()}
LATE: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("late-before-look", "late", "closed", "before look"),
        Fault("late-before-next", "late", 504, "before next"),
        Fault("late-after-next", "late", "closed", "after next"),
    )
}
"""Those that come late by themselves."""
RANDOM_FAULTS = (*(name for name, fault in FAULTS.items() if fault.catalog != "late"), *LATE)
"""Those that need nobody who releases them."""


# ── requests ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


Where = Callable[[Request], bool]


def commits(request: Request) -> bool:
    """Pick commits to a table: claims, publishes, schema changes, and the last step of a creation."""
    return request.method == "POST" and _TABLE.fullmatch(request.path) is not None


def loads(request: Request) -> bool:
    """Pick loads of a table: its first one, and every refresh."""
    return request.method == "GET" and _TABLE.fullmatch(request.path) is not None


@dataclass(slots=True)
class Strike:
    """One fault as it happened; `answers` are the statuses that the catalog gave to the struck request, so far."""

    fault: str
    request: Request
    answers: list[int] = field(default_factory=list)

    @property
    def applied(self) -> bool:
        return any(status < 300 for status in self.answers)


@dataclass(slots=True)
class _Armed:
    """A fault that waits for its request: from the nth match on, so many times."""

    fault: Fault
    where: Where
    skip: int
    times: int

    def is_due(self, request: Request) -> bool:
        """Count a request, and say whether it is this one's turn."""
        if self.times == 0 or not self.where(request):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Chance:
    """Faults by chance: a share of the requests that match."""

    rng: Random
    share: float
    faults: Sequence[Fault]
    where: Where

    def strikes(self, request: Request) -> Fault | None:
        return self.rng.choice(self.faults) if self.where(request) and self.rng.random() < self.share else None


# ── the proxy ──────────────────────────────────────────────────────────────────────────────
class FaultProxy:
    """Listens on a free loopback port in front of `upstream`.

    Between two pieces of a slow answer `pause` seconds pass: it does harm once a client waits for less.
    """

    def __init__(self, upstream: str, *, pause: float = 0.02) -> None:
        self.struck: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        self.pause = pause
        self._upstream = urlsplit(upstream)
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self._chance: _Chance | None = None
        self._held: list[Strike] = []
        self._under_way = 0
        self._quiet = threading.Condition(self._lock)
        self._released = threading.Event()
        self._server = _Listener(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fault-proxy", daemon=True)

    @property
    def uri(self) -> str:
        """Where clients connect instead of the catalog."""
        return f"http://127.0.0.1:{self._server.server_port}{self._upstream.path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. What is still held back never reaches the catalog."""
        self.disarm()
        self._server.shutdown()
        self._server.server_close()

    # ── choosing ───────────────────────────────────────────────────────────────────────────
    def arm(self, fault: str, *, nth: int = 1, times: int = 1, where: Where = commits) -> None:
        """Strike the nth request from now on that `where` picks, and the next ones up to `times` in all."""
        with self._lock:
            self._armed.append(_Armed(named(fault), where, nth - 1, times))

    def randomly(self, rng: Random, share: float, faults: Sequence[str] = RANDOM_FAULTS, where: Where = commits) -> None:
        """Strike this share of the requests that `where` picks, by chance; the same seed makes the same choices."""
        with self._lock:
            self._chance = _Chance(rng, share, [named(name) for name in faults], where)

    def disarm(self) -> None:
        """Strike no more, and drop what is still held back. Afterwards no request is on its way, unless a client has sent one since."""
        with self._quiet:
            self._armed.clear()
            self._chance = None
            self._held.clear()
            self._quiet.wait_for(lambda: self._under_way == 0)
            # What was on its way may have been held back since.
            self._held.clear()
            self._let_go()

    def release(self) -> Sequence[Strike]:
        """Send the requests that are held back to the catalog now, in their order; return what came of each.

        Afterwards no request is on its way, unless a client has sent one since.
        """
        released: list[Strike] = []
        while True:
            with self._quiet:
                # What is on its way may be held back yet.
                self._quiet.wait_for(lambda: self._held or self._under_way == 0)
                if not self._held:
                    self._let_go()
                    return released
                held, self._held = self._held, []
            for strike in held:
                self._forward(strike)
            released += held

    def _due(self, request: Request, untils: Collection[str]) -> Sequence[Strike]:
        """Take those of the late requests to the same table that have waited for this one."""

        def has_waited(late: Strike) -> bool:
            return named(late.fault).until in untils and _table(late.request) == _table(request)

        with self._lock:
            due = [late for late in self._held if has_waited(late)]
            self._held = [late for late in self._held if not has_waited(late)]
        return due

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Have something on its way to the catalog, from the moment in which that is decided."""
        with self._quiet:
            self._under_way += 1
        try:
            yield
        finally:
            with self._quiet:
                self._under_way -= 1
                self._quiet.notify_all()

    def _let_go(self) -> None:
        """End the silence: connections that were kept open are closed."""
        self._released.set()
        self._released = threading.Event()

    # ── striking ───────────────────────────────────────────────────────────────────────────
    def handle(self, request: Request, client: _Client) -> None:
        """Answer one request of a client, or strike it."""
        # Not while the client is answered: one that is paused may not read.
        with self._busy():
            for late in self._due(request, _ends_before(request)):
                self._forward(late)
            after = self._due(request, {"after next"} if commits(request) else ())
            fault = self._choose(request)
            if fault is None:
                answers: Sequence[Answer] = [self.send(request)]
            else:
                strike = Strike(fault.name, request)
                with self._lock:
                    self.strikes.append(strike)
                    self.struck[fault.name] += 1
                    released = self._released
                answers = self._reach(strike, fault)
            for late in after:
                self._forward(late)
        if fault is None:
            client.answer(answers[0])
        else:
            self._reply(client, fault, answers, released)

    def _choose(self, request: Request) -> Fault | None:
        with self._lock:
            # Each armed fault counts for itself. Of several whose turn it is the others wait for the next request.
            due = [armed for armed in self._armed if armed.is_due(request)]
            if due:
                due[0].times -= 1
                return due[0].fault
            return self._chance.strikes(request) if self._chance else None

    def _reach(self, strike: Strike, fault: Fault) -> Sequence[Answer]:
        """Let the catalog have the request as the fault says."""
        match fault.catalog:
            case "never":
                return []
            case "once":
                return [self._forward(strike)]
            case "twice":
                return [self._forward(strike), self._forward(strike)]
            case "late":
                with self._lock:
                    self._held.append(strike)
                return []

    def _reply(self, client: _Client, fault: Fault, answers: Sequence[Answer], released: threading.Event) -> None:
        """Give the client what the fault says."""
        match fault.client:
            case "first":
                client.answer(answers[0])
            case "second":
                client.answer(answers[1])
            case "closed":
                client.hang_up()
            case "reset":
                client.reset()
            case "truncated":
                client.answer(answers[0], share=0.5)
            case "slow":
                client.answer(answers[0], pause=self.pause)
            case "silent":
                released.wait()
                client.hang_up()
            case status:
                client.answer(_error(status))

    def _forward(self, strike: Strike) -> Answer:
        answer = self.send(strike.request)
        strike.answers.append(answer.status)
        return answer

    def send(self, request: Request) -> Answer:
        """Pass a request on to the catalog, on a connection of its own; a catalog that is down is a gateway's 502."""
        connection = HTTPConnection(self._upstream.hostname or "", self._upstream.port or 80, timeout=60)
        try:
            connection.request(request.method, request.path, body=request.body or None, headers=dict(request.headers))
            found = connection.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read())
        except (OSError, HTTPException):
            return _error(502)
        finally:
            connection.close()


def named(fault: str) -> Fault:
    """Return the fault of this name."""
    found = FAULTS.get(fault) or LATE.get(fault)
    if found is None:
        raise ValueError(f"unknown fault {fault!r}; there are {', '.join([*FAULTS, *LATE])}")
    return found


def _ends_before(request: Request) -> Collection[str]:
    """Say which waits of late requests end right before this one is sent on."""
    if commits(request):
        return {"before look", "before next"}
    return {"before look"} if loads(request) else ()


def _table(request: Request) -> str:
    return request.path.partition("?")[0]


def _error(status: int) -> Answer:
    """Make an answer as a catalog would (below 500), or as a gateway in front of it would."""
    if status < 500:
        message = f'{{"error": {{"message": "by the fault proxy", "type": "FaultProxy", "code": {status}}}}}'
        headers = {"Content-Type": "application/json"}
    else:
        message = f"<html><body><h1>{status} by the fault proxy</h1></body></html>"
        headers = {"Content-Type": "text/html"}
    if status in {429, 503}:
        headers["Retry-After"] = "1"
    return Answer(status, headers, message.encode())


# ── the client's side of HTTP ──────────────────────────────────────────────────────────────
class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request: Any) -> None:
        """Close without a farewell: after a reset nothing else may be sent."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients of a fault proxy hang up now and then."""


class _Client(BaseHTTPRequestHandler):
    """One connection of a client; what is done to it."""

    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN_HEADERS}
        self.proxy.handle(Request(self.command, self.path, headers, body), self)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _take  # noqa: N815 — http.server's names

    def answer(self, answer: Answer, *, share: float = 1.0, pause: float = 0.0) -> None:
        """Send an answer: all of it or a share, at once or in pieces."""
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        body = b"" if self.command == "HEAD" else answer.body
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        kept = body[: int(len(body) * share)]
        size = max(1, len(kept) // _PIECES) if pause else max(1, len(kept))
        for start in range(0, len(kept), size):
            self.wfile.write(kept[start : start + size])
            time.sleep(pause)
        if share < 1.0:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection, whatever the client still waits for."""
        self.close_connection = True

    def reset(self) -> None:
        """Close the connection so that the client's system reports a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.hang_up()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — http.server's name
        """Print nothing."""


def _handler(owner: FaultProxy) -> type[_Client]:
    class Handler(_Client):
        proxy = owner

    return Handler
