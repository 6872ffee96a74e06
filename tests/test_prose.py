"""The first lines of docstrings are plain sentences: some words may not stand in them.

`python -m tests.test_prose` prints how each room stands. A room is added to `DONE` when its
docstrings have been rewritten.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Each entry is a folder or a file. A folder includes the folders inside it.
DONE = (
    "integration",
    "tests",
    "txnproducer/_broker",
    "txnproducer/_core",
    "txnproducer/_protocol",
    "txnproducer/_record",
    "txnproducer/_shell",
    "txnproducer/_sync",
    "txnproducer/_wire",
    "txnproducer/__init__.py",
    "txnproducer/__main__.py",
    "txnproducer/_version.py",
    "txnproducer/admin",
    "txnproducer/cli",
    "txnproducer/config",
    "txnproducer/errors",
    "txnproducer/lease.py",
    "txnproducer/producer.py",
    "txnproducer/records.py",
    "txnproducer/testing",
    "txnproducer/transaction.py",
    "txnproducer/sim",
    "txnproducer/spark",
)

# Words that made readers stop, each with the plain way to say it.
UNWANTED = {
    r"who|whom|whoever|whose": "name the caller, the thread or the broker",
    r"what|whatever": "use a noun: 'the records to send', 'the effect of'",
    r"behind": "say 'after', except for a place in a network",
    r"else": "say 'otherwise', or make it a sentence with 'if'",
    r"by now|in vain|anew": "say 'already', 'without success', 'again'",
    r"comes? to|came to|coming to": "say 'reaches', 'becomes', 'happens'",
    r"(?:is|are|was|were|be|been|being) told": "say 'learns', or name the caller of the method",
    r"carried out": "say 'done', 'executed'",
    r"of\b[^,;:.()]*\bof\b[^,;:.()]*\bof": "break the chain of 'of'",
    r"tell (?:whether|if|which|how)": "say 'Return whether', or 'Whether' for a property",
}
# Code, places in a network, "nothing else", and "a producer whose thread has ended".
ALLOWED = re.compile(
    r"`[^`]*`"
    r"|\bbehind (?:a|an|the|one) (?:proxy|load balancer|listener|name)\b"
    r"|\b(?:any|every|no|some)(?:body|one|thing|where)? else\b"
    r"|\b(?:a|an|the|each|every|any|one) (?:[\w-]+ ){1,3}whose\b",
    re.IGNORECASE,
)
PATTERNS = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): say for words, say in UNWANTED.items()}

STRING_LINE = re.compile(r'\s*[rR]?"""')


class Docstring(NamedTuple):
    """A docstring's place and text."""

    path: Path
    line: int
    text: str

    @property
    def first_line(self) -> str:
        """The first line of the text."""
        return self.text.strip().partition("\n")[0]

    @property
    def opening_sentence(self) -> str:
        """The text up to the end of its first sentence."""
        return re.split(r"(?<=[.!?])\s", self.text.strip(), maxsplit=1)[0]


def sources(entry: str) -> list[Path]:
    """Return the Python and Cython files of an entry."""
    place = ROOT / entry
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if path.suffix in {".py", ".pyx", ".pxd"})


def docstrings(path: Path) -> Iterator[Docstring]:
    """Yield all docstrings of a file, those of attributes included."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                value = node.value.value
                if isinstance(value, str):
                    yield Docstring(path, node.lineno, value)
        return
    yield from cython_docstrings(path, source)


def cython_docstrings(path: Path, source: str) -> Iterator[Docstring]:
    """Yield the strings that stand on lines of their own: `ast` cannot read Cython."""
    start, text = 0, ""
    for number, line in enumerate(source.splitlines(), start=1):
        if start == 0:
            if not STRING_LINE.match(line):
                continue
            start, text, line = number, "", line.strip().lstrip("rR")[3:]
        content, end, _ = line.partition('"""')
        text += content + "\n"
        if end:
            yield Docstring(path, start, text)
            start = 0


def objections(first_line: str) -> list[str]:
    """Return the unwanted words of a first line, each with the advice for it."""
    plain = ALLOWED.sub("", first_line)
    return [
        f"{found[0]!r}: {advice}"
        for pattern, advice in PATTERNS.items()
        for found in pattern.finditer(plain)
    ]


@pytest.mark.parametrize("entry", DONE)
def test_first_lines_are_free_of_unwanted_words(entry: str) -> None:
    found = [
        f"{doc.path.relative_to(ROOT)}:{doc.line}: {doc.first_line}\n    {objection}"
        for path in sources(entry)
        for doc in docstrings(path)
        for objection in objections(doc.first_line)
    ]

    assert found == [], "\n".join(found)


@pytest.mark.parametrize("entry", DONE)
def test_each_room_that_is_done_exists(entry: str) -> None:
    assert sources(entry), f"{entry} has moved: change DONE"


@pytest.mark.parametrize(
    "line",
    [
        "Return what is sent.",
        "Fail for whoever waits.",
        "Return whose lock it is.",
        "Wait behind the abort.",
        "Tell whether a record fits.",
        "The size of the batch of the partition of a record.",
    ],
)
def test_the_unwanted_words_are_found(line: str) -> None:
    assert objections(line)


@pytest.mark.parametrize(
    "line",
    [
        "Whether the batch was sent.",
        "A producer whose thread has ended.",
        "Answer of brokers behind a proxy.",
        "The branch of `if ... else`.",
        "The somewhat unusual case.",
        "The number of bytes of a record.",
    ],
)
def test_plain_words_are_not_found(line: str) -> None:
    assert objections(line) == []


def comments(path: Path) -> int:
    """Count the comments of a file that are not directives of a tool, by lines."""
    return sum(
        bool(re.match(r"\s*#(?! (?:cython|distutils|noqa|type|pragma))", line))
        or bool(re.search(r"  # (?!noqa|type:|pragma|pyright)\w", line))
        for line in path.read_text(encoding="utf-8").splitlines()
    )


def figures(entry: str) -> tuple[int, int, int, int, int]:
    """Return lines, comments, docstrings, those with unwanted words, and with `;` or `:`."""
    paths = sources(entry)
    docs = [doc for path in paths for doc in docstrings(path)]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    return (
        lines,
        sum(map(comments, paths)),
        len(docs),
        sum(bool(objections(doc.first_line)) for doc in docs),
        sum(bool(re.search(r"[;:](?:\s|$)", doc.opening_sentence)) for doc in docs),
    )


def main() -> None:
    """Print the figures of each room."""
    package = ROOT / "txnproducer"
    folders = sorted(path for path in package.iterdir() if (path / "__init__.py").exists())
    entries = [f"txnproducer/{path.name}" for path in folders if path.name != "_compiled"]
    entries += [f"txnproducer/{path.name}" for path in sorted(package.glob("*.py"))]
    entries += ["tests", "integration"]
    print(f"{'room':34}{'docs':>6}{'words':>7}{'; or :':>8}{'comments/100':>14}")  # noqa: T201
    for entry in entries:
        lines, remarks, docs, unwanted, joined = figures(entry)
        rate = 100 * remarks / max(lines, 1)
        print(f"{entry:34}{docs:6}{unwanted:7}{joined:8}{rate:14.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
