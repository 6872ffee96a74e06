"""Docstrings' first lines, users' pages, errors and tests' names are free of unwanted words.

`tests/plain_words.py` has the words. `python -m tests.test_prose` prints how each room stands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.plain_words import (
    ROOT,
    Place,
    Text,
    docstrings,
    error_texts,
    error_texts_in,
    names_of_tests,
    objections,
    package_rooms,
    paragraphs,
    rooms,
    sources,
    users_pages,
)


def found(texts: Iterable[Text], place: Place) -> list[str]:
    """Return the texts with an unwanted word, each with the advice for it."""
    complaints = (
        f"{text}\n    {objection}" for text in texts for objection in objections(text.text, place)
    )
    # A constant that several errors use is read once for each of them.
    return list(dict.fromkeys(complaints))


@pytest.mark.parametrize("room", rooms())
def test_first_lines_are_free_of_unwanted_words(room: str) -> None:
    first_lines = (doc.first_line for path in sources(room) for doc in docstrings(path))

    complaints = found(first_lines, Place.FIRST_LINE)

    assert complaints == [], "\n".join(complaints)


@pytest.mark.parametrize("page", users_pages(), ids=lambda page: page.name)
def test_the_users_pages_are_free_of_unwanted_words(page: Path) -> None:
    complaints = found(paragraphs(page), Place.PAGE)

    assert complaints == [], "\n".join(complaints)


@pytest.mark.parametrize("room", [*package_rooms(), "examples"])
def test_the_texts_of_errors_are_free_of_unwanted_words(room: str) -> None:
    texts = (text for path in sources(room) for text in error_texts(path))

    complaints = found(texts, Place.ERROR)

    assert complaints == [], "\n".join(complaints)


@pytest.mark.parametrize("room", ["integration", "tests"])
def test_the_names_of_tests_are_free_of_unwanted_words(room: str) -> None:
    names = (name for path in sources(room) for name in names_of_tests(path))

    complaints = found(names, Place.TEST_NAME)

    assert complaints == [], "\n".join(complaints)


def test_every_folder_of_the_package_is_a_room() -> None:
    assert {"txnproducer/_server", "txnproducer/spark", "txnproducer/lease.py"} <= set(rooms())


def test_the_users_pages_include_the_reference() -> None:
    names = {page.name for page in users_pages()}
    assert {"README.md", "index.md", "errors.md", "configuration.md", "api.rst"} <= names


UNWANTED = {
    Place.FIRST_LINE: [
        "Return what is sent.",
        "Fail for whoever waits.",
        "Return whose lock it is.",
        "Wait behind the abort.",
        "Tell whether a record fits.",
        "The size of the batch of the partition of a record.",
    ],
    Place.TEST_NAME: [
        "what waits is sent",
        "who waits is woken",
        "an abort behind a commit is certain",
        "a topic made anew begins at zero",
        "a record retried in vain fails",
        "a batch is sent by now",
        "a commit may have been carried out",
        "a caller is told the cause",
        "an error reaches whoever waits",
        "a retry keeps its number whatever happens",
    ],
}
PLAIN = {
    Place.FIRST_LINE: [
        "Whether the batch was sent.",
        "A producer whose thread has ended.",
        "Answer of brokers behind a proxy.",
        "The branch of `if ... else`.",
        "The somewhat unusual case.",
        "The number of bytes of a record.",
    ],
    Place.TEST_NAME: ["a header and nothing else", "a broker behind a proxy is named"],
}


def _by_place(table: dict[Place, list[str]]) -> list[tuple[Place, str]]:
    return [(place, text) for place, texts in table.items() for text in texts]


@pytest.mark.parametrize(("place", "text"), _by_place(UNWANTED))
def test_the_unwanted_words_are_found(place: Place, text: str) -> None:
    assert objections(text, place)


@pytest.mark.parametrize(("place", "text"), _by_place(PLAIN))
def test_plain_words_are_not_found(place: Place, text: str) -> None:
    assert objections(text, place) == []


def test_the_names_of_functions_and_classes_of_tests_are_read() -> None:
    names = {name.text for name in names_of_tests(Path(__file__))}
    assert "the names of functions and classes of tests are read" in names
    records = {name.text for name in names_of_tests(ROOT / "tests" / "test_records.py")}
    assert any(name[0].isupper() for name in records)


def test_a_page_may_use_what_in_advice() -> None:
    assert objections("What to do", Place.PAGE) == []


@pytest.mark.parametrize(
    "code",
    [
        "raise LedgerError('Spark does not tell how many')",
        "raise refusal('it keeps ' 'what is there')",
        "return LedgerError(f'batch {number} keeps what is there')",
        "return LedgerError(f'batch {number or \"what\"} is there')",
        "raise LedgerError('one', recovery='do what it says') from error",
        "error = LedgerError('first: ' + 'what is there')",
        "TEXT = 'what is there'\ndef refuse(): raise LedgerError(TEXT)",
    ],
)
def test_the_texts_of_errors_are_read(code: str) -> None:
    texts = error_texts_in(ROOT / "made_up.py", ast.parse(code))
    assert found(texts, Place.ERROR)


def test_other_strings_are_not_texts_of_errors() -> None:
    code = "log.debug('what is there')\nreturn dict(kind='what')"
    assert list(error_texts_in(ROOT / "made_up.py", ast.parse(code))) == []


def comments(path: Path) -> int:
    """Count the comments of a file that are not directives of a tool, by lines."""
    return sum(
        bool(re.match(r"\s*#(?! (?:cython|distutils|noqa|type|pragma))", line))
        or bool(re.search(r"  # (?!noqa|type:|pragma|pyright)\w", line))
        for line in path.read_text(encoding="utf-8").splitlines()
    )


def figures(room: str) -> tuple[int, int, int, int, int]:
    """Return lines, comments, docstrings, those with unwanted words, and with `;` or `:`."""
    paths = sources(room)
    docs = [doc for path in paths for doc in docstrings(path)]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    return (
        lines,
        sum(map(comments, paths)),
        len(docs),
        len(found((doc.first_line for doc in docs), Place.FIRST_LINE)),
        sum(bool(re.search(r"[;:](?:\s|$)", doc.opening_sentence)) for doc in docs),
    )


def main() -> None:
    """Print the figures of each room."""
    print(f"{'room':34}{'docs':>6}{'words':>7}{'; or :':>8}{'comments/100':>14}")  # noqa: T201
    for room in rooms():
        lines, remarks, docs, unwanted, joined = figures(room)
        rate = 100 * remarks / max(lines, 1)
        print(f"{room:34}{docs:6}{unwanted:7}{joined:8}{rate:14.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
