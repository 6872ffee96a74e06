"""Two clusters never choose the same port, and a stopped node keeps its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until
from txnproducer.testing import PortInUseError, _ports
from txnproducer.testing._ports import PortClaims, is_port_free

HOST = "127.0.0.1"
# Claims the ports of the range, says so, and waits for its end.
OTHER = """
import sys, time
from txnproducer.testing import _ports
_ports._PORT_RANGE = range(int(sys.argv[1]), int(sys.argv[2]))
claims = _ports.PortClaims("127.0.0.1")
print(sorted(claims.choose(2)), flush=True)
time.sleep(60)  # until it is killed
"""


@pytest.fixture
def few(monkeypatch) -> range:
    """Leave four ports to choose from, which are free now."""
    with PortClaims(HOST) as claims:
        first = next(
            port
            for port in range(20_000, 32_000, 4)
            if all(is_port_free(port + n, HOST) and claims.claim(port + n) for n in range(4))
        )
    ports = range(first, first + 4)
    monkeypatch.setattr(_ports, "_PORT_RANGE", ports)
    return ports


def test_a_port_with_a_listener_is_not_free():
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_port_free(port, HOST)
    assert is_port_free(port, HOST)


def test_ports_are_distinct_and_outside_the_kernels_range_for_clients():
    with PortClaims(HOST) as claims:
        ports = claims.choose(20)
    assert len(set(ports)) == 20
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert max(ports) < first


def test_a_port_on_which_a_server_listens_is_not_chosen(few):
    with socket.create_server((HOST, few[1])), PortClaims(HOST) as claims:
        assert sorted(claims.choose(3)) == [few[0], few[2], few[3]]
        with pytest.raises(PortInUseError, match="no 1 free ports"):
            claims.choose(1)


def test_two_clusters_choose_different_ports_though_nobody_listens_yet(few):
    with PortClaims(HOST) as one, PortClaims(HOST) as other:
        assert sorted(one.choose(2) + other.choose(2)) == [*few]
        one.close()
        assert len(other.choose(2)) == 2, "the ports of a cluster that has ended"


def test_the_ports_of_another_process_are_its_own_until_it_ends(few):
    command = [sys.executable, "-c", OTHER, str(few.start), str(few.stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            taken = process.stdout.readline()
            with PortClaims(HOST) as claims:
                assert taken != str(sorted(claims.choose(2))) + "\n"
                with pytest.raises(PortInUseError):
                    claims.choose(1)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    with PortClaims(HOST) as claims:
        wait_until(lambda: all(claims.claim(port) for port in few))
