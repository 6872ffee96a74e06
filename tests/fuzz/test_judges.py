"""The proxies make the faults that they count, and the judges of `handshakes` can fail."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.fuzz import frame_proxy, handshakes
from tests.fuzz.frame_proxy import REAL, TLS_CUT, FrameProxy
from tests.fuzz.handshakes import NOT_MET, Cases, missed
from tests.fuzz.process_cluster import address_of
from txnproducer.sim.stack.faults import ByteFault, ConnectionFaults, Ending
from txnproducer.testing import InMemoryKafka
from txnproducer.testing._config import HOST

_REQUEST = struct.pack(">ihhi", 8, 0, 0, 1)


class FatedProxy(FrameProxy):
    """A proxy that gives all connections one fate.

    Attributes:
        fate: of all of them.
    """

    fate = ConnectionFaults()

    def draw(self) -> ConnectionFaults:
        return self.fate


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """Yield the address of a server that answers each connection with its own bytes."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(65_536):
                client.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[:2]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def proxy_with(
    address: tuple[str, int],
    fate: ConnectionFaults,
    context: ssl.SSLContext | None = None,
    tls_cut: float = 0.0,
    seed: int = 1,
) -> FatedProxy:
    proxy = FatedProxy(address, {}, seed, context, tls_cut)
    proxy.fate = fate
    return proxy


def requested(client: socket.socket) -> bytes:
    client.sendall(_REQUEST)
    return client.recv(1_000)


@pytest.mark.parametrize(("reads_s", "wrong"), [(0.0, 1), (30.0, 0)])
def test_a_request_long_after_nonsense_is_a_finding(
    echo: tuple[str, int], reads_s: float, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_proxy, "_READS_S", reads_s)
    with (
        proxy_with(echo, ConnectionFaults(ByteFault.WRONG_NUMBER)) as proxy,
        socket.create_connection((HOST, proxy.port), 10) as client,
    ):
        assert requested(client) != _REQUEST
        assert requested(client) == _REQUEST
    assert len(proxy.wrong) == wrong
    assert +proxy.counts == {ByteFault.WRONG_NUMBER.value: 1}


def test_slow_answers_count_once_for_a_connection(echo: tuple[str, int]) -> None:
    with proxy_with(echo, ConnectionFaults(ByteFault.SLOW, delay_ms=1.0)) as proxy:
        for _ in range(2):
            with socket.create_connection((HOST, proxy.port), 10) as client:
                assert [requested(client) for _ in range(3)] == [_REQUEST] * 3
    assert list((+proxy.counts).values()) == [2]


def test_faults_that_a_listener_cannot_make_have_names_of_their_own(echo: tuple[str, int]) -> None:
    assert ByteFault.NO_CONNECT not in REAL
    for kind in (ByteFault.REFUSED, ByteFault.SLOW_CONNECT):
        with proxy_with(echo, ConnectionFaults(kind)) as proxy:
            # The listener accepts in each case. Its reset may be there before the client looks.
            with contextlib.suppress(ConnectionError):
                with socket.create_connection((HOST, proxy.port), 10) as client:
                    requested(client)
        assert proxy.counts.total() == 1
        assert not proxy.counts[kind.value]


@pytest.mark.parametrize("ending", Ending)
def test_each_handshake_with_tls_is_cut_before_it_is_complete(ending: Ending) -> None:
    with InMemoryKafka({"t": 1}) as kafka:
        address = address_of(kafka.listen())
        context = kafka._tls().context
        client_context = ssl.create_default_context(cafile=kafka.ca_file)
        ends: Counter[str] = Counter()
        for seed in range(10):
            fate = ConnectionFaults(ending=ending)
            with proxy_with(address, fate, context, 1.0, seed) as proxy:
                with socket.create_connection((HOST, proxy.port), 10) as client:
                    client.settimeout(0.3)
                    ends[shaken(client_context, client)] += 1
            assert +proxy.counts == {f"{TLS_CUT}, {ending}": 1}
    said = {Ending.CLOSED: "end", Ending.RESET: "reset", Ending.HALF_OPEN: "silence"}
    # A client that writes at that moment may see an end for a reset.
    assert ends[said[ending]] > 5
    assert ends.keys() <= {said[ending], "end"}


def shaken(context: ssl.SSLContext, client: socket.socket) -> str:
    """Return how a handshake ended. The client's last message may be cut after it was sent."""
    try:
        with context.wrap_socket(client, server_hostname=HOST) as wrapped:
            wrapped.recv(1)
    except TimeoutError:
        return "silence"
    except ConnectionResetError:
        return "reset"
    except ssl.SSLError:
        pass
    return "end"


def test_a_connection_is_not_cut_after_its_handshake(
    echo: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The seed draws a place that no handshake reaches, and that the frame does.
    monkeypatch.setattr(frame_proxy, "_TLS_BYTES", 20_000)
    frame = struct.pack(">ihhi", 30_000, 0, 0, 1).ljust(30_004, b"x")
    with InMemoryKafka({"t": 1}) as kafka:
        context = kafka._tls().context
        client_context = ssl.create_default_context(cafile=kafka.ca_file)
        with proxy_with(echo, ConnectionFaults(), context, 1.0) as proxy:
            with (
                socket.create_connection((HOST, proxy.port), 10) as client,
                client_context.wrap_socket(client, server_hostname=HOST) as wrapped,
            ):
                wrapped.sendall(frame)
                received = b""
                while len(received) < len(frame) and (part := wrapped.recv(65_536)):
                    received += part
    assert received == frame
    assert not +proxy.counts


def test_many_cuts_that_did_not_happen_are_a_finding() -> None:
    cuts = Counter({"cut, reset": 60, "cut, closed": 40, "refused renewal": 500})
    assert missed(cuts + Counter({NOT_MET: 6})) == []
    assert missed(cuts + Counter({NOT_MET: 7})) == ["7 cuts did not happen, 100 did"]


def test_a_login_that_is_never_renewed_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "_SESSION_MS", 0)
    monkeypatch.setattr(handshakes, "_RENEWED_S", 0.1)
    with Cases("PLAIN") as cases:
        monkeypatch.setattr(cases, "_refuse_a_renewal", list)
        cases.renewals([ByteFault.TWICE])
    assert "PLAIN: answer sent twice for a renewed login: no login was renewed" in cases.wrong


def test_a_refusal_that_no_call_reports_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    # The password changes a fifth of this time later, when the writes are over.
    monkeypatch.setattr(handshakes, "_RENEWED_S", 25.0)
    monkeypatch.setattr(handshakes, "_REFUSED_S", 0.0)
    with Cases("PLAIN") as cases:
        cases._refuse_a_renewal()
    assert "PLAIN: a renewed login is refused, and nothing said so" in cases.wrong


def test_threads_descriptors_and_missing_records_are_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "_SETTLE_S", 0.1)
    with Cases("plain") as cases:
        before = handshakes._left()
        cases._judge("sound", before)
        assert cases.wrong == []
        cases._committed = [b"0:0"]
        is_over = threading.Event()
        thread = threading.Thread(target=is_over.wait)
        thread.start()
        with socket.create_server((HOST, 0)):
            cases._judge("case", before)
        is_over.set()
        thread.join()
    (record, left) = cases.wrong
    assert record == "case: 1 committed, 0 found"
    assert "'threads': 1" in left
    assert "'socket': 1" in left
