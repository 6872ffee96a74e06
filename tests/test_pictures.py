"""The pictures of the documentation are those of their texts."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.pictures.content import FOLDER, PICTURES
from tests.pictures.drawing import draw
from tests.pictures.elements import Arrow, Box, Lifeline, Part, Picture, Words
from tests.state_machine_page import PICTURE as STATES


def picture_of(*row: Box | Arrow | Lifeline | Words) -> Picture:
    return Picture("a title", "a description", [Part({"one": 100, "other": 100}, [row, row])])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text("utf-8")
    assert drawn == draw(PICTURES[name]), "run: python -m tests.pictures"


def test_each_picture_is_drawn_from_a_text() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == PICTURES.keys() | {STATES.stem}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_a_picture_has_no_width_of_its_own_so_that_a_phone_scales_it(path) -> None:
    root = ET.parse(path).getroot()
    assert "viewBox" in root.attrib
    assert root.attrib.keys().isdisjoint({"width", "height"})


@pytest.mark.parametrize(
    "element",
    [
        Box("one", "longer than its box"),
        Lifeline("one", "longer than its head"),
        Arrow("one", "other", "longer than the arrow"),
        Words("one", "longer than its column"),
    ],
    ids=lambda element: type(element).__name__,
)
def test_a_text_that_does_not_fit_is_refused(element) -> None:
    with pytest.raises(ValueError, match=r"'longer than .*: break the line"):
        draw(picture_of(element))


def test_a_box_of_several_rows_needs_their_height_for_its_text() -> None:
    box = Box("one", "a\nb\nc\nd\ne\nf", rows=2)
    with pytest.raises(ValueError, match="higher than its 2 rows"):
        draw(picture_of(box, Box("other", "a")))


def test_an_arrow_ends_at_the_box_of_its_row_otherwise_at_the_lifeline() -> None:
    assert "M246 " in draw(picture_of(Arrow("one", "other", "a")))
    assert "M296 " in draw(picture_of(Box("one", "a"), Arrow("one", "other")))


def test_a_text_cannot_become_markup_of_the_picture() -> None:
    root = ET.fromstring(draw(picture_of(Words("one", "a < **b** & `c`"))))
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a < b & c"] * 2
