"""The fault proxy itself, in front of a server that counts."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from icefront.proof import proxy as module
from icefront.proof.proxy import FAULTS, LATE, RANDOM_FAULTS, FaultProxy, Request, commits, loads

TABLE = "/v1/namespaces/shop/tables/orders"


class Catalog(ThreadingHTTPServer):
    """Answers every commit with its number; only the first of equal ones is accepted."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Catalog

    def do_GET(self) -> None:
        self.reply(200, f"{len(self.server.bodies)} commits so far".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = 409 if body in self.server.bodies else 200
        self.server.bodies.append(body)
        self.reply(status, b"commit %d" % len(self.server.bodies))

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("X-Catalog", "yes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    with Catalog() as server:
        yield server
        server.shutdown()


@pytest.fixture
def proxy(catalog: Catalog) -> Iterator[FaultProxy]:
    with FaultProxy(f"http://127.0.0.1:{catalog.server_port}", pause=0.001) as found:
        yield found


def ask(
    proxy: FaultProxy, method: str = "POST", path: str = TABLE, body: bytes = b"one", *, patience: float = 10
) -> tuple[int, bytes]:
    address = urlsplit(proxy.uri)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=patience)
    try:
        connection.request(method, path, body if method == "POST" else None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_nothing_armed_means_nothing_changed(proxy: FaultProxy, catalog: Catalog) -> None:
    assert ask(proxy) == (200, b"commit 1")
    assert ask(proxy) == (409, b"commit 2")
    assert ask(proxy, "GET") == (200, b"2 commits so far")
    assert ask(proxy, "HEAD")[0] == 501
    assert not proxy.strikes


# What the catalog gets, and what the client gets: an answer, or the error that it sees.
EXPECTED: dict[str, tuple[list[int], object]] = {
    "lost": ([200], http.client.RemoteDisconnected),
    "twice-first": ([200, 409], (200, b"commit 1")),
    "twice-second": ([200, 409], (409, b"commit 2")),
    "late-504": ([], 504),
    "late-closed": ([], http.client.RemoteDisconnected),
    "silent": ([], TimeoutError),
    "truncated": ([200], http.client.IncompleteRead),
    "slow": ([200], (200, b"commit 1")),
    "reset-before": ([], ConnectionResetError),
    "reset-after": ([200], ConnectionResetError),
    **{f"{status}-before": ([], status) for status in (403, 409, 429, 500, 502, 503, 504)},
    **{f"{status}-after": ([200], status) for status in (403, 409, 429, 500, 502, 503, 504)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_does_what_the_table_says(proxy: FaultProxy, catalog: Catalog, fault: str) -> None:
    answers, seen = EXPECTED[fault]
    proxy.arm(fault)
    if isinstance(seen, type):
        with pytest.raises(seen):
            ask(proxy, patience=0.2 if seen is TimeoutError else 10)
    elif isinstance(seen, int):
        assert ask(proxy)[0] == seen
    else:
        assert ask(proxy) == seen
    assert proxy.struck == {fault: 1}
    assert [strike.answers for strike in proxy.strikes] == [answers]
    assert proxy.strikes[0].applied == (200 in answers)
    assert len(catalog.bodies) == len(answers)
    assert ask(proxy, body=b"next")[0] == 200, "only once"


def test_every_fault_is_in_the_modules_table() -> None:
    assert set(EXPECTED) == set(FAULTS)
    assert all(f"`{name}`" in (module.__doc__ or "") for name in {**FAULTS, **LATE})


def test_the_nth_request_is_struck_and_as_many_as_asked_for(proxy: FaultProxy) -> None:
    proxy.arm("500-before", nth=2, times=2)
    assert [ask(proxy, body=b"%d" % n)[0] for n in range(5)] == [200, 500, 500, 200, 200]


def test_loads_and_commits_are_told_apart(proxy: FaultProxy) -> None:
    proxy.arm("500-before", where=loads)
    assert ask(proxy)[0] == 200
    assert ask(proxy, "GET", f"{TABLE}?snapshots=all")[0] == 500
    paths = [TABLE, f"{TABLE}?x=y", f"/v1/prefix{TABLE[3:]}", f"{TABLE}/metrics", "/v1/config", "/v1/namespaces/shop/tables"]
    assert [commits(Request("POST", path, {}, b"")) for path in paths] == [True, True, True, False, False, False]
    assert not commits(Request("GET", TABLE, {}, b""))


def test_late_requests_arrive_in_order_when_they_are_released(proxy: FaultProxy, catalog: Catalog) -> None:
    proxy.arm("late-504", times=2)
    assert [ask(proxy, body=body)[0] for body in (b"a", b"b")] == [504, 504]
    assert ask(proxy, body=b"a")[0] == 200
    assert [strike.answers for strike in proxy.release()] == [[409], [200]]
    assert catalog.bodies == [b"a", b"a", b"b"]
    assert not proxy.release()


# What is asked after a late commit, and what the catalog has got by the time of each answer.
COME: dict[str, list[tuple[str, bytes, list[bytes]]]] = {
    "late-before-look": [("GET", b"", [b"late"]), ("POST", b"next", [b"late", b"next"])],
    "late-before-next": [("GET", b"", []), ("POST", b"next", [b"late", b"next"])],
    "late-after-next": [("GET", b"", []), ("POST", b"next", [b"next", b"late"])],
}


@pytest.mark.parametrize("fault", LATE)
def test_a_late_request_comes_by_itself_when_its_table_is_asked_for_again(
    proxy: FaultProxy, catalog: Catalog, fault: str
) -> None:
    proxy.arm(fault)
    with suppress(http.client.RemoteDisconnected):
        assert ask(proxy, body=b"late")[0] == 504
    ask(proxy, "GET", f"{TABLE}s")
    ask(proxy, path=f"{TABLE}s", body=b"another table's")
    assert catalog.bodies.pop() == b"another table's"
    assert catalog.bodies == []
    for method, body, came in COME[fault]:
        ask(proxy, method, body=body)
        assert catalog.bodies == came
    assert [strike.fault for strike in proxy.strikes if strike.answers] == [fault]
    assert not proxy.release()


def test_a_commit_without_a_look_ends_that_wait_too(proxy: FaultProxy, catalog: Catalog) -> None:
    proxy.arm("late-before-look")
    with pytest.raises(http.client.RemoteDisconnected):
        ask(proxy, body=b"late")
    ask(proxy, body=b"next")
    assert catalog.bodies == [b"late", b"next"]


def test_a_late_request_that_nobody_asks_after_is_released_with_the_others(proxy: FaultProxy, catalog: Catalog) -> None:
    proxy.arm("late-after-next")
    with pytest.raises(http.client.RemoteDisconnected):
        ask(proxy, body=b"late")
    assert [strike.answers for strike in proxy.release()] == [[200]]


def test_what_is_held_back_when_the_proxy_ends_never_arrives(catalog: Catalog) -> None:
    with FaultProxy(f"http://127.0.0.1:{catalog.server_port}") as proxy:
        proxy.arm("late-504")
        ask(proxy)
    assert not proxy.release()
    assert catalog.bodies == []


def test_the_same_seed_strikes_the_same_requests(catalog: Catalog) -> None:
    def faults() -> list[str]:
        with FaultProxy(f"http://127.0.0.1:{catalog.server_port}") as proxy:
            proxy.randomly(Random(5), 0.5, faults=["500-before", "502-after", "409-before"])
            for number in range(30):
                ask(proxy, body=b"%d" % number)
            return [strike.fault for strike in proxy.strikes]

    first = faults()
    assert first == faults()
    assert 5 < len(first) < 25
    assert not {"silent", "late-504", "late-closed"} & set(RANDOM_FAULTS), "somebody has to release them"


def test_a_catalog_that_is_down_is_a_gateways_502(catalog: Catalog) -> None:
    with FaultProxy("http://127.0.0.1:1") as proxy:
        assert ask(proxy)[0] == 502


def test_an_unknown_fault_is_named_with_those_there_are(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="unknown fault 'flood'; there are lost, twice-first"):
        proxy.arm("flood")


def test_of_two_faults_that_are_due_at_once_the_second_waits_for_the_next_request(proxy: FaultProxy) -> None:
    proxy.arm("500-before")
    proxy.arm("502-before")
    assert [ask(proxy)[0] for _ in range(3)] == [500, 502, 200]


@pytest.mark.parametrize("path", ["", "/iceberg", "/api/catalog", "/v1"])
def test_a_catalog_may_have_a_path_of_its_own(path: str) -> None:
    table, others = f"{path}{TABLE}", ("", "/metrics", "/../config")
    assert commits(Request("POST", table, {}, b""))
    assert loads(Request("GET", f"{table}?snapshots=all", {}, b""))
    assert not any(commits(Request("POST", f"{path}/v1/namespaces{other}", {}, b"")) for other in others)
    assert not commits(Request("POST", f"{table}/metrics", {}, b""))


# Where a request may be when one asks: at the catalog; chosen and not yet sent, or not yet held back; late, and its time has come.
MOMENTS: dict[str, tuple[type, str]] = {
    "at the catalog": (Handler, "reply"),
    "let through": (FaultProxy, "send"),
    "struck": (FaultProxy, "_reach"),
    "arriving": (FaultProxy, "_forward"),
}


@pytest.mark.parametrize("ends", ["release", "disarm"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_to_release_or_disarm_waits_for_what_is_on_its_way(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, moment: str, ends: str
) -> None:
    """A commit of a client that was killed may land while one looks at what it left."""
    begun, goes_on = threading.Event(), threading.Event()
    owner, step = MOMENTS[moment]
    steps = getattr(owner, step)

    def hesitates(*told: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return steps(*told)

    def talks(proxy: FaultProxy) -> None:
        with suppress(http.client.RemoteDisconnected):
            ask(proxy)
        if moment == "arriving":
            ask(proxy, "GET")

    monkeypatch.setattr(owner, step, hesitates)
    with FaultProxy(f"http://127.0.0.1:{catalog.server_port}") as proxy:
        if moment in {"struck", "arriving"}:
            proxy.arm("late-before-look" if moment == "arriving" else "late-504")
        client = threading.Thread(target=talks, args=(proxy,))
        client.start()
        assert begun.wait(60)
        end = threading.Thread(target=getattr(proxy, ends))
        end.start()
        end.join(0.2)
        assert end.is_alive()
        goes_on.set()
        for thread in (client, end):
            thread.join()
        dropped = moment == "struck" and ends == "disarm"
        assert catalog.bodies == ([] if dropped else [b"one"])
        assert proxy.release() == []
