"""Writes docs/pictures: `python -m tests.pictures`."""

from __future__ import annotations

from tests.pictures.content import FOLDER, PICTURES
from tests.pictures.drawing import draw

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(picture), encoding="utf-8")
