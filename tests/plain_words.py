"""The words that may not stand in this project's texts, and the texts where they may not.

Why it exists: some words made readers stop, in first lines of docstrings, on users' pages, in
texts of errors and in names of tests. One table names them all, so that a new word or a new kind
of text is one change.
Owns: `TABLE`, the reading of each kind of text, and the search.
Must not know: pytest. `tests/test_prose.py` asserts that nothing is found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from enum import Flag, auto
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Place(Flag):
    """The kinds of texts that are read."""

    FIRST_LINE = auto()
    """The first lines of docstrings, of the package, the tests and the examples."""
    PAGE = auto()
    """README.md, the first page, the parts "Use" and "Reference", and three pages of evidence."""
    ERROR = auto()
    """The texts of errors of the package and the examples."""
    TEST_NAME = auto()
    """The names of the tests' functions and classes, as words."""


class Word(NamedTuple):
    """A row of the table: words, where they may not stand, and the plain way to say it."""

    pattern: re.Pattern[str]
    places: Place
    advice: str


class Text(NamedTuple):
    """A text's place and content."""

    path: Path
    line: int
    text: str

    @property
    def first_line(self) -> Text:
        """Its first line."""
        return self._replace(text=self.text.strip().partition("\n")[0])

    @property
    def opening_sentence(self) -> str:
        """The text up to the end of its first sentence."""
        return re.split(r"(?<=[.!?])\s", self.text.strip(), maxsplit=1)[0]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def _word(words: str, places: Place, advice: str) -> Word:
    return Word(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), places, advice)


_EVERYWHERE = Place.FIRST_LINE | Place.PAGE | Place.ERROR | Place.TEST_NAME
# A page may say "what to do", and describe "the owner of the topic of a record".
_SHORT_TEXTS = Place.FIRST_LINE | Place.ERROR

TABLE = (
    _word(r"who|whom|whose", _SHORT_TEXTS, "name the caller, the thread or the broker"),
    _word(r"what", _SHORT_TEXTS, "use a noun: 'the records to send', 'the effect of'"),
    _word(r"^(?:what|who)", Place.TEST_NAME, "begin with a noun: 'a batch', 'the sender'"),
    _word(r"whoever|whatever", _EVERYWHERE, "name the caller, the thread or the thing"),
    _word(r"behind", _EVERYWHERE, "say 'after', except for a place in a network"),
    _word(r"else", _EVERYWHERE, "say 'otherwise', or make it a sentence with 'if'"),
    _word(r"by now|in vain|anew", _EVERYWHERE, "say 'already', 'without success', 'again'"),
    _word(r"comes? to|came to|coming to", _EVERYWHERE, "say 'reaches', 'becomes', 'happens'"),
    _word(
        r"(?:is|are|was|were|be|been|being) told",
        _EVERYWHERE,
        "say 'learns', or name the caller of the method",
    ),
    _word(r"told", Place.TEST_NAME, "say 'reported', 'raised', 'returned', 'logged'"),
    _word(r"carried out", _EVERYWHERE, "say 'done', 'executed'"),
    _word(r"of\b[^,;:.()]*\bof\b[^,;:.()]*\bof", _SHORT_TEXTS, "break the chain of 'of'"),
    _word(
        r"tells? (?:whether|if|which|how)",
        _SHORT_TEXTS,
        "say 'Return whether', 'Whether' for a property, or 'give the number of'",
    ),
)

# Code, places in a network, "nothing else", and "a producer whose thread has ended".
ALLOWED = re.compile(
    r"`[^`]*`"
    r"|\bbehind (?:a|an|the|one) (?:proxy|load balancer|listener|name)\b"
    r"|\b(?:any|every|no|some)(?:body|one|thing|where)? else\b"
    r"|\b(?:a|an|the|each|every|any|one) (?:[\w-]+ ){1,3}whose\b",
    re.IGNORECASE,
)
FENCED_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PARAGRAPH = re.compile(r"(?:^.*\S.*$\n?)+", re.MULTILINE)
TEST_NAME = re.compile(r"test_|Test(?=[A-Z])")
BETWEEN_WORDS = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")
STRING_LINE = re.compile(r'\s*[rR]?"""')
SOURCES = {".py", ".pyx", ".pxd"}


def objections(text: str, place: Place) -> list[str]:
    """Return the unwanted words of a text, each with the advice for it."""
    plain = ALLOWED.sub("", text)
    return [
        f"{found[0]!r}: {word.advice}"
        for word in TABLE
        if place in word.places
        for found in word.pattern.finditer(plain)
    ]


def package_rooms() -> list[str]:
    """Return the folders and the top-level files of the package, as they are on the disk."""
    package = ROOT / "txnproducer"
    rooms = [
        path
        for path in package.iterdir()
        if path.suffix in SOURCES or (path.is_dir() and any(path.rglob("*.py")))
    ]
    return sorted(str(path.relative_to(ROOT)) for path in rooms)


def rooms() -> list[str]:
    """Return all folders and files with docstrings; a folder includes the folders inside it."""
    return [*package_rooms(), "compiled", "examples", "integration", "tests"]


def sources(room: str) -> list[Path]:
    """Return the Python and Cython files of a room."""
    place = ROOT / room
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if path.suffix in SOURCES)


def users_pages() -> list[Path]:
    """Return the pages that users read: most of them from the site's list of its parts."""
    configuration = ast.parse((ROOT / "docs" / "conf.py").read_text(encoding="utf-8"))
    [parts] = [
        ast.literal_eval(node.value)
        for node in configuration.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "parts"
    ]
    names = ["index", *parts["Use"], *parts["Reference"], "proven", "evidence", "benchmarks"]
    found = [
        path
        for name in names
        for path in (ROOT / "docs" / f"{name}.md", ROOT / "docs" / f"{name}.rst")
        if path.exists()
    ]
    return [ROOT / "README.md", *found]


def paragraphs(path: Path) -> Iterator[Text]:
    """Yield the paragraphs and tables of a page outside its blocks of code, each as one line.

    Line by line, "is" at the end of one line and "told" in the next would not be found.
    """
    source = path.read_text(encoding="utf-8")
    prose = FENCED_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), source)
    for found in PARAGRAPH.finditer(prose):
        yield Text(path, prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split()))


def docstrings(path: Path) -> Iterator[Text]:
    """Yield all docstrings of a file, those of attributes included."""
    if path.suffix == ".py":
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                value = node.value.value
                if isinstance(value, str):
                    yield Text(path, node.lineno, value)
        return
    yield from cython_docstrings(path, path.read_text(encoding="utf-8"))


def cython_docstrings(path: Path, source: str) -> Iterator[Text]:
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
            yield Text(path, start, text)
            start = 0


def names_of_tests(path: Path) -> Iterator[Text]:
    """Yield the names of a file's tests as words, without `test` in front."""
    if path.suffix == ".py":
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                start = TEST_NAME.match(node.name)
                if start is not None:
                    words = BETWEEN_WORDS.sub(" ", node.name[start.end() :])
                    yield Text(path, node.lineno, words)


def error_texts(path: Path) -> Iterator[Text]:
    """Yield the texts of the errors that a file raises or returns, or makes for later."""
    if path.suffix == ".py":
        yield from error_texts_in(path, _parsed(path))


def error_texts_in(path: Path, tree: ast.AST) -> Iterator[Text]:
    """Yield the strings in the arguments of errors, with `{}` for the values of f-strings.

    A name in the arguments stands for the string that the module gives it at its top level.
    """
    constants = dict(_constants_of(tree))
    for node in ast.walk(tree):
        # A `raise` may call a function that makes the error, by any name.
        call = node.exc if isinstance(node, ast.Raise) and not _is_error(node.exc) else node
        if isinstance(call, ast.Call) and (call is not node or _is_error(call)):
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                for line, text in _strings_of(argument, constants):
                    yield Text(path, line, text)


def _constants_of(tree: ast.AST) -> Iterator[tuple[str, ast.Constant | ast.JoinedStr]]:
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(node.value, ast.Constant | ast.JoinedStr):
                yield ast.unparse(target), node.value


def _is_error(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "Exception"))


def _strings_of(
    node: ast.AST, constants: Mapping[str, ast.Constant | ast.JoinedStr]
) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        pieces = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
        yield node.lineno, "".join(map(str, pieces))
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from _strings_of(value.value, constants)
    elif not _is_error(node):
        # An error in an argument of another error is a node of its own for the caller.
        for child in ast.iter_child_nodes(node):
            yield from _strings_of(child, constants)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
