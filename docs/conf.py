"""The site of these pages: `make docs` builds it into build/docs.

The pages are plain Markdown, so that they read as well in the repository. What the site needs
beyond them stands here, above all the order of the pages.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
        "transactions",
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
    ("py:.*", r"(array|collections\.abc|os|pathlib|typing)\..+"),
    # The core's port is private. Only the producer makes a `FutureBatchMetadata`, which takes one.
    ("py:class", r"Waiter"),
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
            listed = "\n".join(pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def setup(app: Sphinx) -> None:
    """Connect what this file adds to Sphinx."""
    app.add_config_value("parts", {}, rebuild="env", types=[dict])
    app.connect("source-read", add_navigation)
