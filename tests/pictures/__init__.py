"""The pictures of the documentation, as text: `python -m tests.pictures` writes them.

A picture's words and arrows stand in `content` and `spark`. They are made of `elements`; `layout`
gives each its place, and `drawing` writes the SVG. The picture of the states is drawn from the
table of transitions by `tests/state_machine_page.py`.
"""
