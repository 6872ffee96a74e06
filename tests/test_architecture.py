"""The rules of the code base that a tool can check: layers, documents, nothing left unfinished."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("txnproducer", "tests", "integration", "examples")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# The package's files of more lines than `MAX_FILE_LINES`: the lines that each may have, and why it
# is one file. A file leaves the list when it is short enough.
LONG_FILES = {
    "txnproducer/_record/_speedups.pyx": (
        765,
        "Its C functions call each other for each row; between modules such a call costs more.",
    ),
    "txnproducer/_broker/cluster.py": (
        490,
        "Topics, leaders and timers are one state, which every fault changes.",
    ),
    "txnproducer/_core/append/appender.py": (
        622,
        "The order of a send's checks is one rule.",
    ),
    "txnproducer/_core/batches/producer_batch.py": (
        490,
        "One batch with all its ends, which exclude each other.",
    ),
    "txnproducer/_core/batches/record_accumulator.py": (
        592,
        "Queues, memory and flushes count the same batches and have to agree at each end of one.",
    ),
    "txnproducer/_core/producer_core.py": (
        530,
        "The one list of the core's public calls, most of which are a line each.",
    ),
    "txnproducer/_core/sending/produce_sender.py": (
        670,
        "An answer, an expiry or an abort settles a batch, and each has to see the others.",
    ),
    "txnproducer/_core/sequences/sequence_manager.py": (
        490,
        "The rules of sequence numbers are one judgement over one table of partitions.",
    ),
    "txnproducer/_core/transactions/handler.py": (
        420,
        "The life that all requests have in common, and all that they may ask of a transaction.",
    ),
    "txnproducer/_core/transactions/manager.py": (
        490,
        "The operations of a transaction refuse each other, so their checks are read together.",
    ),
    "txnproducer/_core/transactions/progress.py": (
        590,
        "The answers, errors and batches that end a transaction meet in any order.",
    ),
    "txnproducer/_core/transactions/requests.py": (
        430,
        "A table of the requests to coordinators, one handler after the other.",
    ),
    "txnproducer/_wire/codec.py": (
        420,
        "One encoder and one decoder for each API, as two tables that are read side by side.",
    ),
    "txnproducer/_wire/network_client.py": (
        592,
        "One loop over one table of connections, which everything in it changes.",
    ),
    "txnproducer/errors/__init__.py": (
        430,
        "The errors that users meet, in the order of the tree that stands above them.",
    ),
    "txnproducer/producer.py": (
        610,
        "The one public class of transactions, and a third of it documents its calls.",
    ),
    "txnproducer/sim/apps/workload.py": (
        430,
        "The scripts of an application share their steps and their mistakes.",
    ),
    "txnproducer/sim/trouble.py": (
        500,
        "One short method for each event that can happen to a cluster.",
    ),
    "txnproducer/sim/world/network.py": (
        530,
        "A simulated network is one state of connections, on which every fault acts.",
    ),
    "txnproducer/sim/world/options.py": (
        430,
        "The order in which a seed draws its options must not change, and is seen in one place.",
    ),
    "txnproducer/sim/world/wire_rules.py": (
        510,
        "The rules of a producer's requests share one account of the batches that were sent.",
    ),
    "txnproducer/testing/memory.py": (
        590,
        "The one list of a test's calls, most of which are a few lines each.",
    ),
}

# Empty files only mark a folder of tests.
PYTHON_FILES = sorted(
    path
    for folder in CODE_FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.stat().st_size > 0
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT_FILES = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~$}/])/(work|root|tmp|home|Users|mnt)/\w")
MARKDOWN_LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
FENCED_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def matches(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{named(path)}:{number}: {line.strip()}"
        for path in paths
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def anchors_of(document: Path) -> set[str]:
    text = FENCED_BLOCK.sub("", document.read_text(encoding="utf-8"))
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in words}


def test_every_import_goes_down_the_layers() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [tool, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_importing_the_package_does_not_load_spark_or_test_tools() -> None:
    program = (
        "import sys, txnproducer\n"
        "heavy = {'pyspark', 'pandas', 'pyarrow', 'pytest', 'jgo', 'rich', 'click'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


def test_nothing_is_marked_as_unfinished() -> None:
    assert matches([*PYTHON_FILES, *DOCUMENTS, *PROJECT_FILES], UNFINISHED) == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert matches([*PYTHON_FILES, *DOCUMENTS, *PROJECT_FILES], MACHINE_PATH) == []


@pytest.mark.parametrize("path", PYTHON_FILES, ids=named)
def test_every_module_says_why_it_exists(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert len(docstring.split()) >= 4, f"{named(path)} needs a docstring"
    assert "placeholder" not in docstring.lower()


def all_modules() -> list[str]:
    """Return the modules that have a source in Python, which any run can import."""
    found = (
        path.relative_to(ROOT).with_suffix("") for path in (ROOT / "txnproducer").rglob("*.py")
    )
    names = sorted(".".join(path.parts).removesuffix(".__init__") for path in found)
    return [name for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize("name", all_modules())
def test_every_exported_name_exists(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert [export for export in exported if not hasattr(module, export)] == []
    assert len(set(exported)) == len(exported)


def test_the_plan_of_rooms_names_every_room_and_every_module_of_the_top_level() -> None:
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    plan = design[design.index("## Rooms") : design.index("## Two implementations")]
    told = set(re.findall(r"`([\w/]+)`", plan))
    package = ROOT / "txnproducer"
    rooms = {path.parent.relative_to(package) for path in package.rglob("__init__.py")}
    private = {"_compiled", "handlers"}
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    wanted = {str(room) for room in rooms if room.parts and room.name not in private} | modules
    assert sorted(wanted - told - {"_core"}) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    text = FENCED_BLOCK.sub("", document.read_text(encoding="utf-8"))
    broken = []
    for link in MARKDOWN_LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target_name, _, anchor = link.partition("#")
        target = (document.parent / target_name).resolve() if target_name else document
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_python_block_of_a_document_is_python(document: Path) -> None:
    for language, block in FENCED_BLOCK.findall(document.read_text(encoding="utf-8")):
        if language == "python":
            compile(block, named(document), "exec")


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_a_block_that_names_its_source_stands_there(document: Path) -> None:
    for _, block in FENCED_BLOCK.findall(document.read_text(encoding="utf-8")):
        first, _, code = block.partition("\n")
        if match := re.fullmatch(r"# From (\S+)", first):
            source = (ROOT / match[1]).read_text(encoding="utf-8")
            assert any(textwrap.indent(code, indent) in source for indent in ("", "    ")), first


def test_a_test_is_skipped_only_with_a_reason() -> None:
    unexplained = [
        f"{named(path)}: {ast.unparse(node).splitlines()[0]}"
        for path in PYTHON_FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if is_skip_without_reason(node)
    ]
    assert unexplained == []


def is_skip_without_reason(node: ast.AST) -> bool:
    """Return whether a node is a bare skip mark, or a skip or xfail that says no reason."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        needed = {"pytest.skip": 1, "pytest.mark.skip": 1, "pytest.xfail": 1}
        if name in {"pytest.mark.skipif", "pytest.mark.xfail", "pytest.importorskip"}:
            return not any(keyword.arg == "reason" for keyword in node.keywords)
        return len(arguments) < needed.get(name, 0)
    decorators = getattr(node, "decorator_list", [])
    return any(
        ast.unparse(each) in {"pytest.mark.skip", "pytest.mark.xfail"} for each in decorators
    )


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_a_file_of_the_package_is_short_or_has_a_reason_not_to_be():
    package = ROOT / "txnproducer"
    files = [path for path in PYTHON_FILES if path.is_relative_to(package)]
    files += sorted(package.rglob("*.pyx"))
    grown = [
        f"{named(path)} has {lines_of(path)} lines, of which {most} are allowed"
        for path in files
        if lines_of(path) > (most := LONG_FILES.get(named(path), (MAX_FILE_LINES, ""))[0])
    ]
    assert grown == [], "give a part that has a meaning of its own a module of its own"


@pytest.mark.parametrize("name", LONG_FILES)
def test_a_file_that_is_listed_as_long_still_is(name: str) -> None:
    most, reason = LONG_FILES[name]
    assert lines_of(ROOT / name) > MAX_FILE_LINES, "take it off the list: it is short enough"
    assert most - lines_of(ROOT / name) < 30, "lower its number: it has become shorter"
    assert re.fullmatch(r"[A-Z][^.]+\.", reason), "the reason is one sentence"


def test_report_large_files_and_functions(run_notes: list[str]) -> None:
    """Large files of tests, and functions, are a reason to look, not a failure."""
    for path in PYTHON_FILES:
        count = lines_of(path)
        if count > MAX_FILE_LINES and named(path) not in LONG_FILES:
            run_notes.append(f"{named(path)}: {count} lines (aim: {MAX_FILE_LINES})")
        for function in functions_of(path):
            lines = body_lines(function)
            if lines > MAX_FUNCTION_LINES:
                where = f"{named(path)}:{function.lineno} {function.name}"
                run_notes.append(f"{where}: {lines} lines (aim: {MAX_FUNCTION_LINES})")


# Attributes of the core that another file than their class's may set, and why.
SET_ELSEWHERE = {
    (
        "FutureRecordMetadata",
        "_result",
    ): "Compiled, a constructor costs three times as much.",
    ("FutureRecordMetadata", "_index"): "As `_result`.",
    ("FutureRecordMetadata", "_timestamp_ms"): "As `_result`.",
    ("FutureRecordMetadata", "_key_size"): "As `_result`.",
    ("FutureRecordMetadata", "_value_size"): "As `_result`.",
}


def set_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Return the attributes that a part of a program sets or deletes, also in tuples."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
            yield each


def of_self(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"


class CoreAttributes:
    """The classes of a package with their attributes, and the places that set those.

    An object's class is known from a parameter's annotation, or from the call that made it. If it
    is not known, it is any class that declares the attribute, and one of the same file if any.
    """

    def __init__(self, folder: Path) -> None:
        self.trees = {
            path: ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")
        }
        self.files: dict[str, Path] = {}
        self.bases: dict[str, list[str]] = {}
        self.declared: dict[str, set[str]] = {}
        for path, tree in self.trees.items():
            for made in ast.walk(tree):
                if isinstance(made, ast.ClassDef):
                    self.files[made.name] = path
                    self.bases[made.name] = [ast.unparse(base) for base in made.bases]
                    fields = {
                        ast.unparse(line.target)
                        for line in made.body
                        if isinstance(line, ast.AnnAssign)
                    }
                    own = {each.attr for each in set_attributes(made) if of_self(each)}
                    self.declared[made.name] = fields | own

    def owners(self, name: str) -> list[str]:
        """Return a class and the classes that it inherits from, the most basic one first."""
        bases = [base for base in self.bases.get(name, []) if base in self.files]
        return [owner for base in bases for owner in self.owners(base)] + [name]

    def set_in_other_files(self) -> Iterator[tuple[str, str, str]]:
        """Return each attribute's class, its name, and the place that sets it elsewhere."""
        for path, tree in self.trees.items():
            for scope, class_name in self.functions(tree):
                # A constructor sets what it inherits, before any other code has the object.
                if scope.name == "__init__":
                    continue
                known = self.classes_in(scope)
                for each in set_attributes(scope):
                    owner = self.owner(each, class_name, known, path)
                    if owner is not None and self.files[owner] != path:
                        yield owner, each.attr, f"{named(path)}:{each.lineno}"

    def functions(self, tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
        for made in tree.body:
            if isinstance(made, ast.FunctionDef):
                yield made, ""
            elif isinstance(made, ast.ClassDef):
                yield from ((f, made.name) for f in made.body if isinstance(f, ast.FunctionDef))

    def classes_in(self, scope: ast.FunctionDef) -> dict[str, str]:
        """Return the class of each local name that shows it."""
        known = {
            each.arg: ast.unparse(each.annotation).removesuffix(" | None")
            for each in scope.args.args + scope.args.kwonlyargs
            if each.annotation is not None
        }
        for line in ast.walk(scope):
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call):
                made_by = ast.unparse(line.value.func)
                if made_by.isidentifier() and made_by[0].isupper():
                    known |= {ast.unparse(target): made_by for target in line.targets}
        return known

    def owner(
        self, attribute: ast.Attribute, class_name: str, known: dict[str, str], path: Path
    ) -> str | None:
        name = attribute.attr
        found = class_name if of_self(attribute) else known.get(ast.unparse(attribute.value))
        if found is not None:
            declaring = [o for o in self.owners(found) if name in self.declared.get(o, ())]
            return declaring[0] if declaring else None
        declaring = [each for each, names in self.declared.items() if name in names]
        # The name of an attribute may be that of one here as well, which is then meant.
        own = [each for each in declaring if self.files[each] == path]
        return next(iter(own or declaring), None)


def test_an_attribute_of_the_core_is_set_in_the_file_of_its_class():
    found = list(CoreAttributes(ROOT / "txnproducer" / "_core").set_in_other_files())
    wrong = [
        f"{place} sets {owner}.{name}"
        for owner, name, place in found
        if (owner, name) not in SET_ELSEWHERE
    ]
    assert sorted(wrong) == [], "give the class a method that is named after the event"
    kept = {(owner, name) for owner, name, _ in found}
    assert [each for each in SET_ELSEWHERE if each not in kept] == [], "take it off the list"


def test_modules_compiled_as_they_are_have_types():
    setup = ast.parse((ROOT / "setup.py").read_text("utf-8"))
    [modules] = [
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "AS_THEY_ARE"
    ]
    for package, names in modules.items():
        folder = ROOT.joinpath("compiled", *package.split("."))
        assert [name for name in names if not (folder / f"{name}.pxd").exists()] == []


def classes_of(folder: Path) -> dict[str, set[str]]:
    """Return the names of a package's own classes, by the name without leading underscores."""
    names: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name.lstrip("_"), set()).add(node.name)
    return names


PACKAGES = sorted(path.parent for path in (ROOT / "txnproducer").rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_two_classes_of_a_package_differ_by_more_than_an_underscore(package: Path) -> None:
    alike = [sorted(names) for names in classes_of(package).values() if len(names) > 1]
    assert not alike, "give each the word that tells them apart"


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_a_room_states_the_things_it_must_not_know(package: Path) -> None:
    if package.name == "_compiled":
        return
    text = (package / "__init__.py").read_text(encoding="utf-8")
    docstring = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    assert re.search(r"[Mm]ust not\b|\bNothing here\b", docstring)


def test_each_folder_of_types_is_a_package_that_exists():
    folders = {types.parent for types in (ROOT / "compiled").rglob("*.pxd")}
    for folder in folders:
        assert (folder / "__init__.pxd").exists(), named(folder)
        assert (ROOT / folder.relative_to(ROOT / "compiled") / "__init__.py").exists()
