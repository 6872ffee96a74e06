"""The check of the built site notices each file that a browser would load from another host."""

from __future__ import annotations

import pytest

from tests.site_check import problems_of


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>'),
        ("a.html", '<link rel="stylesheet" href="//fonts.example/css">'),
        ("a.html", '<img alt="" src="http://badges.example/x.svg">'),
        ("a.css", "@import 'https://fonts.example/css';"),
        ("a.css", "a { background: url(https://pictures.example/x.png) }"),
        ("a.svg", "<style>@font-face { src: url('https://fonts.example/x') }</style>"),
    ],
)
def test_a_resource_of_another_host_is_named(tmp_path, name, text):
    (tmp_path / "index.html").write_text("<p>first page</p>", "utf-8")
    (tmp_path / name).write_text(text, "utf-8")
    [problem] = problems_of(tmp_path)
    assert problem.startswith(f"{tmp_path / name}: loads ")


def test_a_link_to_another_host_and_a_file_of_the_site_are_no_problem(tmp_path):
    page = (
        '<link rel="stylesheet" href="_static/x.css"><a href="https://kafka.apache.org">Kafka</a>'
    )
    (tmp_path / "index.html").write_text(page, "utf-8")
    assert list(problems_of(tmp_path)) == []


def test_a_site_without_a_first_page_is_a_problem(tmp_path):
    assert list(problems_of(tmp_path)) == [f"{tmp_path}: there is no site"]
