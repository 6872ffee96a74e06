"""Cut every handshake at each message, and answer renewed logins with nonsense, on real sockets.

    python -m tests.fuzz.handshakes [--share N] [--seed S]

A producer that ships meets one fault on its first connection, and all others are sound. It has to
initialize and to commit within the limit of its calls, its record is there once, and `close()`
leaves no thread and no descriptor. `--share 5` plays a fifth of the cases, which the seed draws.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeVar

from tests.fuzz.frame_proxy import ANSWER_FAULTS, FrameProxy
from tests.fuzz.limits import limit_time
from tests.fuzz.process_cluster import SETTINGS, address_of
from tests.fuzz.unit_proxy import AFTER, BEFORE, WITHIN, Cut, UnitProxy
from txnproducer import TransactionalProducer
from txnproducer._server.login import Users
from txnproducer.errors import KafkaError
from txnproducer.sim.stack.faults import ByteFault, ConnectionFaults, Ending
from txnproducer.testing import InMemoryKafka
from txnproducer.testing._config import HOST
from txnproducer.testing._memory_server import MemoryServer

PASSWORD: Final = "secret"
SECURITIES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "PLAIN": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
    "SCRAM": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"},
    "TLS": {"security_protocol": "SSL"},
    "TLS with SCRAM": {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256"},
}
# A handshake with TLS and SCRAM has no more messages of one side.
_MOST_MESSAGES: Final = 10
_MOST_CALL_S: Final = 30.0
# Far above what a case may take: a few calls, and the time to settle.
_MOST_CASE_S: Final = 240.0
# One cut of so many may miss: a connection has fewer messages than the sound one had.
_MISSES: Final = 20
NOT_MET: Final = "not met"
_SETTLE_S: Final = 10.0
_SESSION_MS: Final = 250
# Longer than the time after which a request on a connection without sense is a finding.
_RENEWED_S: Final = 1.8
# Longer than the limit of a record.
_REFUSED_S: Final = 8.0


_T = TypeVar("_T")


class Cases:
    """A cluster with one kind of security, and the producers that meet faults at it.

    Args:
        security: a name in `SECURITIES`.

    Attributes:
        wrong: the rules that were broken.
        counts: the cases by their kind.
    """

    def __init__(self, security: str) -> None:
        self._security = security
        self._is_tls = security.startswith("TLS")
        self._has_login = "sasl_mechanism" in SECURITIES[security]
        self._passwords = {"alice": PASSWORD}
        users = self._passwords if self._has_login else None
        self._kafka = InMemoryKafka({"t": 1}, users=users)
        self._stack = contextlib.ExitStack()
        self._address = ("", 0)
        self._number = 0
        self._committed: list[bytes] = []
        self._last = b""
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._kafka)
        self._address = address_of(self._kafka.listen(tls=self._is_tls))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- cuts -----------------------------------------------------------------------------------

    def cuts(self) -> Iterator[Cut]:
        """Yield a cut at each message that a sound connection has until a commit."""
        with UnitProxy(self._address, None, is_tls=self._is_tls) as proxy:
            self._write(proxy.port)
        for is_of_client, carried in zip((True, False), proxy.carried, strict=True):
            numbers = range(min(carried, _MOST_MESSAGES))
            places = itertools.product(numbers, (BEFORE, WITHIN, AFTER), Ending)
            for number, place, ending in places:
                yield Cut(is_of_client, number, place, ending)

    def cut(self, cut: Cut) -> None:
        """Let a producer's first connection be cut."""
        before = _left()
        with UnitProxy(self._address, cut, is_tls=self._is_tls) as proxy:
            self._expect(f"{self._security}: {cut}", lambda: self._write(proxy.port))
        self._judge(f"{self._security}: {cut}", before)
        self.counts[f"cut, {cut.ending}" if proxy.has_cut else NOT_MET] += 1

    # --- renewed logins -------------------------------------------------------------------------

    def renewals(self, kinds: Sequence[ByteFault]) -> None:
        """Answer renewed logins with some kinds of nonsense, and refuse one."""
        server = self._kafka._live
        assert isinstance(server, MemoryServer)
        server._users = Users(self._passwords, session_lifetime_ms=_SESSION_MS)
        address = address_of(self._kafka.listen())
        for kind in kinds:
            before = _left()
            context = self._kafka._tls().context if self._is_tls else None
            with _RenewalProxy(address, kind, context) as proxy:
                # The broker names the proxy to its clients, so that all their connections meet it.
                server._listeners.advertised[False][0] = (HOST, proxy.port)
                name = f"{self._security}: {kind} for a renewed login"
                self._expect(name, lambda proxy=proxy: self._write(proxy.port, _RENEWED_S))
            self.wrong += [f"{name}: {each}" for each in proxy.wrong]
            if not proxy.counts[f"{kind.value}, of a renewed login"]:
                self.wrong.append(f"{name}: no login was renewed")
            self._judge(name, before)
            self.counts["nonsense for a renewed login"] += 1
        server._listeners.advertised[False][0] = address
        self._refuse_a_renewal()

    def _refuse_a_renewal(self) -> None:
        before = _left()
        name = f"{self._security}: a renewed login is refused"
        timer = threading.Timer(_RENEWED_S / 5, self._passwords.update, [{"alice": "another"}])
        timer.start()
        began = time.monotonic()
        is_in_doubt = False
        try:
            self._write(self._address[1], _REFUSED_S)
            self.wrong.append(f"{name}, and nothing said so")
        except KafkaError as error:
            is_in_doubt = error.recovery == "unknown"
            if error.recovery not in ("fix", "unknown"):
                self.wrong.append(f"{name}: {error!r} says {error.recovery}")
        finally:
            took_s = time.monotonic() - began
            timer.join()
            self._passwords["alice"] = PASSWORD
        if took_s > _MOST_CALL_S:
            self.wrong.append(f"{name}: took {took_s:.0f} s")
        self._judge(name, before, is_in_doubt=is_in_doubt)
        self._expect(f"{name}, then not", lambda: self._write(self._address[1]))
        self._judge(f"{name}, then not", before)
        self.counts["refused renewal"] += 1

    # --- a producer, and the judge --------------------------------------------------------------

    def _write(self, port: int, seconds: float = 0.0) -> None:
        """Commit a transaction with a new producer, and more for some time."""
        self._number += 1
        self._committed = []
        settings = {
            **SETTINGS,
            "max_block_ms": 10_000,
            "bootstrap_servers": f"{HOST}:{port}",
            "transactional_id": f"id-{self._number}",
            **SECURITIES[self._security],
        }
        if self._is_tls:
            settings["ssl_cafile"] = self._kafka.ca_file
        if self._has_login:
            settings |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
        end = time.monotonic() + seconds
        with TransactionalProducer(**settings) as producer:
            producer.init_transactions()
            for number in itertools.count():
                self._last = value = b"%d:%d" % (self._number, number)
                try:
                    with producer.transaction():
                        producer.send("t", value)
                    self._committed.append(value)
                except KafkaError as error:
                    # A record may expire before its leader's login is refused.
                    if error.recovery != "abort" or not seconds:
                        raise
                if time.monotonic() > end:
                    return
                time.sleep(0.02)  # the pace of the transactions

    def _expect(self, name: str, write: Any) -> None:
        began = time.monotonic()
        try:
            write()
        except KafkaError as error:
            self.wrong.append(f"{name}: {error!r}")
        took_s = time.monotonic() - began
        if took_s > _MOST_CALL_S:
            self.wrong.append(f"{name}: took {took_s:.0f} s")

    def _judge(
        self, name: str, before: tuple[int, Counter[str]], *, is_in_doubt: bool = False
    ) -> None:
        """Compare the records with the commits, and look for leftovers.

        Args:
            before: the threads and descriptors before the case.
            is_in_doubt: whether the last transaction may be there as well.
        """
        allowed = [self._committed]
        if is_in_doubt:
            allowed.append([*self._committed, self._last])
        # An open transaction of a producer that cannot go on hides all records after it, until the
        # coordinator aborts it.
        found = _until(lambda: self._found(), lambda found: found in allowed)
        if found not in allowed:
            self.wrong.append(f"{name}: {len(self._committed)} committed, {len(found)} found")
        left = _until(lambda: _more(before), lambda left: not left)
        if left:
            self.wrong.append(f"{name}: left {left}")

    def _found(self) -> list[bytes]:
        values = [each.value or b"" for each in self._kafka.records("t")]
        return [value for value in values if value.startswith(b"%d:" % self._number)]


class _RenewalProxy(FrameProxy):
    """A proxy that answers renewed logins with nonsense, on its first connections."""

    def __init__(self, address: tuple[str, int], kind: ByteFault, context: Any) -> None:
        super().__init__(address, {}, 1, context, has_sessions=True)
        self._kind = kind
        self._left = 2

    def draw(self) -> ConnectionFaults:
        self._left -= 1
        return ConnectionFaults(self._kind if self._left >= 0 else None, is_at_login=True)


def _left() -> tuple[int, Counter[str]]:
    """Return the number of threads, and the open descriptors by their kinds."""
    gc.collect()  # the descriptors of a producer before live as long as the object
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{name}").partition(":")[0]] += 1  # noqa: PTH115
    return threading.active_count(), found


def _more(before: tuple[int, Counter[str]]) -> Counter[str]:
    """Return the threads and descriptors that were not there before."""
    threads, descriptors = _left()
    return descriptors - before[1] + Counter(threads=max(0, threads - before[0]))


def _until(look: Callable[[], _T], is_right: Callable[[_T], bool]) -> _T:
    """Look until the result is right, or for some time. Return the last one."""
    deadline = time.monotonic() + _SETTLE_S
    while not is_right(found := look()) and time.monotonic() < deadline:
        time.sleep(0.01)  # the server sees the ends of connections a moment later
    return found


def missed(counts: Counter[str]) -> list[str]:
    """Return a text if too many cuts did not happen, so that their cases show nothing."""
    cuts = sum(count for name, count in counts.items() if name.startswith("cut,"))
    if counts[NOT_MET] <= 1 + cuts // _MISSES:
        return []
    return [f"{counts[NOT_MET]} cuts did not happen, {cuts} did"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.handshakes", description=__doc__)
    parser.add_argument("--share", type=int, default=1, help="play one of so many cases")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    rng, share = random.Random(arguments.seed), int(arguments.share)
    counts, wrong = Counter[str](), list[str]()

    always = rng.choice([each for each, more in SECURITIES.items() if "sasl_mechanism" in more])

    def is_drawn() -> bool:
        return rng.random() < 1 / share

    for security, settings in SECURITIES.items():
        with Cases(security) as cases:
            for cut in cases.cuts():
                if is_drawn():
                    limit_time(_MOST_CASE_S)
                    cases.cut(cut)
            kinds = [kind for kind in ANSWER_FAULTS if is_drawn()]
            if security == always:
                kinds = kinds or [rng.choice(ANSWER_FAULTS)]
            if "sasl_mechanism" in settings and kinds:
                limit_time(_MOST_CASE_S * (len(kinds) + 1))
                cases.renewals(kinds)
        counts.update(cases.counts)
        wrong += cases.wrong
    wrong += missed(counts)
    print(f"cases {dict(counts)}")
    print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
