"""The site of these pages: `make docs` builds it into build/docs.

The pages are plain Markdown, so that they read as well in the repository. What the site needs
beyond them stands here, above all the order of the pages.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# Interpreted functions have the signatures and docstrings that autodoc reads.
os.environ["TXNPRODUCER_IMPL"] = "python"

from txnproducer import __version__  # noqa: E402 - from this checkout, whatever is installed

# The parts of the site and their pages, in the order of the side bar.
parts = {
    "Use": [
        "quickstart",
        "transactional-id",
        "services",
        "asyncio",
        "sessions",
        "ledger",
        "outbox",
        "transactions",
        "serializers",
        "two-phase-commit",
        "errors",
        "spark",
        "spark-cluster",
        "cli",
        "coming-from",
        "guarantees",
        "speed",
        "testing",
    ],
    "Reference": ["api", "configuration", "metrics-and-logs", "glossary"],
    "How it is built and proven": [
        "proven",
        "evidence",
        "clusters",
        "design",
        "state-machine",
        "simulator",
        "simulator-stack",
        "simulator-parts",
        "simulator-bugs",
        "stack-mutants",
        "simulator-found",
        "conformance",
        "oracle-differences",
        "benchmarks",
        "benchmarks-tables",
        "benchmarks-analysis",
        "benchmarks-spark",
        "contributing",
        "changelog",
    ],
}

project = "txnproducer"
author = "the authors of txnproducer"
project_copyright = "the authors of txnproducer, Apache License 2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "index"
highlight_language = "text"

# Anchors as the repository's own viewer makes them; tests/test_architecture.py checks both.
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = "txnproducer"
html_copy_source = False
html_show_sphinx = False

# A docstring says `name` where reStructuredText would have ``name``.
default_role = "code"
# With `-n`, a type that has no entry on these pages is a broken link.
nitpick_ignore_regex = [
    # The standard library has pages of its own. Their inventory needs a network.
    ("py:.*", r"(array|collections\.abc|contextlib|os|pathlib|threading|typing)\..+"),
    # The core's port is private. Only the producer makes a `FutureBatchMetadata`, which takes one.
    ("py:class", r"Waiter"),
    # The type of a function's result, and a path where the annotations are not evaluated.
    ("py:class", r"(txnproducer\.\w+(\.\w+)?\.)?T|Path|SessionConsumer"),
    # SQLAlchemy's.
    ("py:class", r"Connection|Engine|MetaData|Session|Table|sa\..+"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the table of contents to the first page, hidden: the side bar shows it."""
    if docname == root_doc:
        for caption, pages in app.config.parts.items():
            first = ["What a transaction is <self>"] if caption == "Use" else []
            listed = "\n".join(first + pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


LONG_WORD = re.compile(r"[^\s<>]{13,}")
# A word of more characters is too wide for a column even on a desk.
WIDEST_WORD = 38
# After `_`, `.`, `/` or `:` in a name, and between the words of a CamelCase one. A name's first
# underscores stay with it.
BREAK_AFTER = re.compile(
    r"(?<=[A-Za-z0-9])([./:]+(?=\w)|_+(?=[A-Za-z0-9])|(?<=[a-z])(?=[A-Z]))",
)


def break_long_word(word: re.Match[str]) -> str:
    """Allow breaks in a name: always in a very long one, otherwise on a narrow screen."""
    always = len(word[0]) > WIDEST_WORD
    mark = "<wbr>" if always else '<wbr class="narrow">'
    return BREAK_AFTER.sub(rf"\1{mark}", word[0])


def break_names_in_tables(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Let the long names in tables wrap. Otherwise they push the other columns off the screen."""

    def broken(table: re.Match[str]) -> str:
        parts = re.split(r"(<[^>]*>)", table[0])
        parts[::2] = [LONG_WORD.sub(break_long_word, text) for text in parts[::2]]
        return "".join(parts)

    if "body" in context:
        context["body"] = re.sub(r"(?s)<table.*?</table>", broken, context["body"])


def setup(app: Sphinx) -> None:
    """Connect the functions of this file to Sphinx."""
    app.add_config_value("parts", {}, rebuild="env", types=[dict])
    app.connect("source-read", add_navigation)
    app.connect("html-page-context", break_names_in_tables)
