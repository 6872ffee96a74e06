"""The calls of the interpreter that compiled code makes for a record, counted and not timed.

Cython can say of each line how many calls of Python's C-API its C has, the dear ones weighted (the
score of `cython -a`). A type that got lost, or an attribute that is looked up by its name, shows
there and in no other test: it works the same, several times as slowly. A ceiling that a change
breaks is either the change's mistake, or raised here, with it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Other versions write other C.
CYTHON = "3.3."
ROOT = Path(__file__).parent.parent
# The functions that run for each record, or for each row; the sums of their lines' scores.
CEILINGS = {
    "txnproducer/_shell/_fast_send.pyx": {
        "is_callback": 5,
        "is_bytes_or_none": 0,
        "is_ascii": 2,
        "is_named_pair": 20,
        "to_headers": 52,
        "is_count": 4,
        "send": 147,
        "_try_send": 51,
    },
    "txnproducer/_sync/_core_lock.pyx": {
        "try_take": 0,
        "take": 2,
        "_is_taken": 0,
        "give": 10,
        "ring": 0,
        "is_wanted": 0,
        "want_interpreter": 0,
        "have": 0,
        "_wake_one": 0,
    },
    "txnproducer/_core/append/fast_append.py": {"try_append": 210, "_queue_for_key": 100},
    "txnproducer/_record/_speedups.pyx": {
        "to_timestamp": 49,
        "put_bytes": 2,
        "size_of": 2,
        "size_of_headers": 33,
        "put_headers": 23,
        "size_of_piece": 0,
        "put_piece": 0,
        "_has_room": 0,
        "_reserve": 11,
        "append_fast": 217,
        "append_pieces": 0,
        "_offset": 12,
        "_check_offsets": 46,
        "find": 18,
        "_find": 7,
        "encoded_headers": 148,
        "append_to": 139,
        "largest": 63,
        "reach": 154,
        "by_partition": 126,
        "places": 98,
        "hash_sum": 158,
        "sorted_rows": 126,
        "first_not_bytes": 54,
    },
}
# All others, by why they need no ceiling.
EXEMPT: dict[str, dict[str, tuple[str, ...]]] = {
    "txnproducer/_shell/_fast_send.pyx": {
        "once for each producer": ("_enable_fast_path", "_disable_fast_path"),
        "the method's call itself costs more": ("_try_serialized",),
        "for what is not usual": ("to_encoded",),
    },
    "txnproducer/_sync/_core_lock.pyx": {
        "once for each producer": ("__cinit__", "__dealloc__"),
        "once for each fork": ("reset_after_fork",),
        "it sleeps": ("_wait", "sleep"),
        "the method's call itself costs more": (
            "acquire",
            "release",
            "is_mine",
            "locked",
            "__enter__",
            "__exit__",
            "give_way",
            "take_first",
        ),
    },
    "txnproducer/_core/append/fast_append.py": {
        "once for each producer": ("__init__",),
        "for what is not usual": ("append",),
    },
    "txnproducer/_record/_speedups.pyx": {
        "once for each batch": (
            "set_growth",
            "set_memory",
            "_set_certain_limit",
            "estimated_size_bytes",
            "body",
            "kept_buffer",
            "keep_buffer",
            "forget_kept_buffers",
            "take",
            "drop",
        ),
        "once for each column, or for each batch": ("__cinit__", "_take_buffers", "__init__"),
        "for what is not usual; the method's call itself costs more": (
            "murmur2",
            "append",
            "fits",
        ),
        "for a row that is looked at alone": ("item", "record"),
    },
}
# In each function a declaration, and what it would be without its type.
LOST_TYPES = {
    "to_timestamp": ("    cdef long long number\n", "    cdef object number\n"),
    "_check_offsets": ("cdef long long last = 0", "cdef object last = 0"),
    "encoded_headers": (
        "    cdef Py_ssize_t size\n    cdef bytes encoded\n",
        "    cdef object size, encoded\n",
    ),
    "append_to": (
        "cdef Py_ssize_t position = start, index,",
        "cdef object position = start\n        cdef Py_ssize_t index,",
    ),
    "largest": ("cdef Py_ssize_t row, size, largest_row", "cdef object row, size, largest_row"),
    "reach": ("cdef Py_ssize_t position, row, row_bytes", "cdef object position, row, row_bytes"),
    "by_partition": ("cdef int[::1] chosen = array", "cdef object chosen = array"),
    "places": ("cdef int[::1] chosen = found", "cdef object chosen = found"),
    "hash_sum": ("cdef Py_ssize_t row, size_bytes = 0", "cdef object row, size_bytes = 0"),
    "sorted_rows": ("cdef int[::1] places = order", "cdef object places = order"),
    "first_not_bytes": (
        "    cdef Py_ssize_t index\n    for index in range(PyTuple_GET_SIZE(items)):\n",
        "    cdef object index\n    for index in range(PyTuple_GET_SIZE(items)):\n",
    ),
}
_LINE = re.compile(r'<pre class="cython line score-(\d+)".*?<span class="">0*(\d+)</span>')
_FUNCTION = re.compile(r"( *)(?:def|cdef|cpdef)\b[^(=]*?(\w+)\(")


def directives(source: str) -> list[str]:
    """Return the directives of setup.py with which a source is compiled, for the command line."""
    setup = ast.parse((ROOT / "setup.py").read_text("utf-8"))
    told = {
        ast.unparse(node.targets[0]): node.value
        for node in setup.body
        if isinstance(node, ast.Assign)
    }
    chosen = ast.literal_eval(told["DIRECTIVES"])
    if source.endswith(".pyx"):
        chosen |= ast.literal_eval(told["UNCHECKED"])
    return [word for name, value in chosen.items() for word in ("-X", f"{name}={value}")]


def scores(source: str, text: str, folder: Path) -> dict[str, int]:
    """Return the score of each function of a source, if that had this text."""
    written = folder / source
    written.parent.mkdir(parents=True)
    written.write_text(text, "utf-8")
    for types in (ROOT / "compiled" / source).parent.glob("*.pxd"):
        (written.parent / types.name).write_bytes(types.read_bytes())
    roots = ["-I", str(ROOT / "compiled"), "-I", str(ROOT)]
    command = [sys.executable, "-m", "cython", "-a", *roots, *directives(source)]
    subprocess.run(
        [*command, "-o", str(written.with_suffix(".c")), str(written)],
        cwd=folder,
        check=True,
        timeout=100,
    )
    page = written.with_suffix(".html").read_text("utf-8")
    of_line = {int(number): int(score) for score, number in _LINE.findall(page)}
    assert len(of_line) == len(text.splitlines())
    found: dict[str, int] = {}
    for name, lines in functions(text):
        found[name] = found.get(name, 0) + sum(of_line[number] for number in lines)
    return found


def functions(text: str):
    """Return each function's name, and the numbers of its lines."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        begun = _FUNCTION.match(line)
        if begun is None:
            continue
        end = at + 1
        while end < len(lines) and (is_inside(lines[end], begun[1]) or not lines[end].strip()):
            end += 1
        yield begun[2], range(at + 1, end + 1)


def is_inside(line: str, indent: str) -> bool:
    # A signature that is broken ends with a bracket as far to the left as it begins.
    return line.startswith((indent + " ", indent + ")"))


def is_cython_there() -> str:
    """Return why the scores cannot be had, or nothing."""
    if importlib.util.find_spec("Cython") is None:
        return "Cython is not installed (dependency group `dev`)"
    version = importlib.metadata.version("cython")
    if version.startswith(CYTHON):
        return ""
    return f"Cython {version} writes other C than {CYTHON}x: install that one"


needs_cython = pytest.mark.skipif(bool(is_cython_there()), reason=is_cython_there())


def exempt(source: str) -> list[str]:
    return [name for names in EXEMPT[source].values() for name in names]


@needs_cython
@pytest.mark.parametrize("source", CEILINGS)
def test_compiled_code_asks_no_more_of_the_interpreter(source, tmp_path):
    found = scores(source, (ROOT / source).read_text("utf-8"), tmp_path)
    beyond = {name: found[name] for name, most in CEILINGS[source].items() if found[name] > most}
    assert not beyond


@pytest.mark.parametrize("source", CEILINGS)
def test_each_function_has_a_ceiling_or_a_reason_to_have_none(source):
    there = {name for name, _ in functions((ROOT / source).read_text("utf-8"))}
    assert sorted([*CEILINGS[source], *exempt(source)]) == sorted(there)


@needs_cython
def test_a_lost_type_in_the_code_run_for_each_row_is_noticed(tmp_path):
    source = "txnproducer/_record/_speedups.pyx"
    text = (ROOT / source).read_text("utf-8")
    for typed, untyped in LOST_TYPES.values():
        assert text.count(typed) == 1
        text = text.replace(typed, untyped)
    found = scores(source, text, tmp_path)
    assert [name for name in LOST_TYPES if found[name] <= CEILINGS[source][name]] == []


@needs_cython
@pytest.mark.parametrize(
    ("source", "name", "before", "slow"),
    [
        (
            "txnproducer/_shell/_fast_send.pyx",
            "_try_send",
            "        self._lock.take()\n",
            "        self._records.latest\n",
        ),
        (
            "txnproducer/_core/append/fast_append.py",
            "try_append",
            "        buffer = batch.builder.records_buffer\n",
            "        builder = self._machine.builder\n",
        ),
    ],
)
def test_one_more_look_up_by_name_would_be_noticed(source, name, before, slow, tmp_path):
    text = (ROOT / source).read_text("utf-8")
    assert before in text
    found = scores(source, text.replace(before, slow + before), tmp_path)
    assert found[name] > CEILINGS[source][name]
