"""The numbers of workers, which processes of one machine take by lock files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from txnproducer._shell.pool_members import Member
from txnproducer._shell.worker_slots import WorkerIds
from txnproducer.errors import InvalidConfigurationError
from txnproducer.pool import ProducerPool


@pytest.fixture
def ids():
    """Return a maker of ids. Their locks end with the test."""
    made = []

    def make(folder, worker=None, most=4, name="svc"):
        made.append(WorkerIds(name, worker, folder, most))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_ids_of_a_worker_are_numbered(tmp_path, ids):
    one = ids(tmp_path, worker=7)
    assert [one.take() for _ in range(3)] == ["svc-7-0", "svc-7-1", "svc-7-2"]


def test_workers_without_a_number_take_one_each(tmp_path, ids):
    first, second = ids(tmp_path), ids(tmp_path)
    assert first.take().endswith("-0-0")
    assert second.take().endswith("-1-0")
    first.close()
    assert ids(tmp_path).take().endswith("-0-0"), "it is free again"


def test_a_worker_of_another_process_and_the_last_one_are_refused(tmp_path, ids):
    given = ids(tmp_path, worker="a")
    given.take()
    with pytest.raises(InvalidConfigurationError, match=r"worker='a'.*another pool of this"):
        ids(tmp_path, worker="a").take()
    ids(tmp_path, worker="b").take()
    ids(tmp_path, worker="a", name="another").take()
    holders = [ids(tmp_path, most=2) for _ in range(2)]
    for holder in holders:
        holder.take()
    with pytest.raises(InvalidConfigurationError, match=r"all 2 workers.*Raise most_workers"):
        ids(tmp_path, most=2).take()


@pytest.mark.parametrize("name", ["", "a b", "a/b", None, 5])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, ids, name):
    with pytest.raises(InvalidConfigurationError, match="name="):
        ids(tmp_path, name=name)
    with pytest.raises(InvalidConfigurationError, match="worker="):
        ids(tmp_path, worker="a/b")


def test_the_default_folder_is_the_users_own(monkeypatch, tmp_path, ids):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    one = ids(None)
    one.take()
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(os, "getuid", lambda: 99_999)
    (tmp_path / "txnproducer-99999").mkdir()
    with pytest.raises(InvalidConfigurationError, match="another user's: give lock_folder"):
        ids(None).take()


def test_a_folder_in_which_no_lock_can_be_made_is_refused_with_the_way_out(
    monkeypatch, tmp_path, ids
):
    def refuse():
        raise FileNotFoundError("No usable temporary directory found")

    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("tempfile.gettempdir", refuse)
    for folder in (file, None):
        one = ids(folder, worker=0)
        with pytest.raises(InvalidConfigurationError, match=r"lock_folder: .* may write"):
            one.take()


# --- forks ---------------------------------------------------------------------------------------


class Child:
    """A forked process that does some work, reports a text, and lives until it is ended."""

    def __init__(self, work: Callable[[], str]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            text = "nothing"
            try:
                text = work()
            except InvalidConfigurationError as error:
                text = f"refused: {error}"
            finally:
                os.write(write, text.encode())
                os.close(write)
                signal.pause()  # until it is killed
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            self.told = pipe.read().decode()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


@pytest.fixture
def fork():
    children = []

    def fork_child(work):
        children.append(Child(work))
        return children[-1]

    yield fork_child
    for child in children:
        child.kill()


def forks(test):
    needs = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
    return needs(pytest.mark.filterwarnings("ignore::DeprecationWarning")(test))


@forks
def test_four_forked_workers_of_which_one_is_killed_and_replaced(tmp_path, fork, ids):
    shared = ids(tmp_path)  # made before the fork, and not used there
    workers = [fork(lambda: shared.take()) for _ in range(4)]
    told = [worker.told for worker in workers]
    assert len(set(told)) == 4
    assert fork(lambda: shared.take()).told.startswith("refused: all 4 workers")
    workers[2].kill()
    assert fork(lambda: shared.take()).told == told[2]


@forks
def test_a_child_has_no_part_in_the_lock_of_its_parent(tmp_path, fork, ids):
    shared = ids(tmp_path)
    mine = shared.take()

    def take_in_child():
        shared.leave_to_parent()
        return shared.take()

    child = fork(take_in_child)
    assert child.told not in (mine, "nothing")
    shared.close()
    assert ids(tmp_path, most=1).take(), "the child does not keep the lock of its parent"


@forks
def test_a_child_that_never_uses_the_ids_does_not_keep_the_lock(tmp_path, fork, ids):
    shared = ids(tmp_path, worker="a")
    shared.take()
    fork(lambda: "idle")
    shared.close()
    assert ids(tmp_path, worker="a").take() == "svc-a-0"


@forks
def test_a_pool_forgets_its_parent_in_each_child(tmp_path, fork):
    with ProducerPool("boot:9092", "svc", lock_folder=tmp_path) as pool:
        mine = pool._ids.take()
        told = fork(lambda: pool._ids.take()).told
        assert told.startswith("svc-")
        assert told != mine
        pool._members.append(Member(mine))
        assert fork(lambda: str(len(pool._members))).told == "0"
