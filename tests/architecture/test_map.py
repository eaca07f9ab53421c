"""The picture of the rooms in ARCHITECTURE.md is that of the code."""

from __future__ import annotations

from collections import Counter

from scripts import draw_map


def test_the_picture_shows_the_rooms_and_their_imports() -> None:
    rooms = draw_map.read_rooms()
    imports = draw_map.imports_between(rooms)
    problems = draw_map.faults(draw_map.PICTURE.read_text(encoding="utf-8"), rooms, imports)
    assert problems == [], "run `make map`"


def test_a_picture_of_other_rooms_or_imports_is_stale() -> None:
    rooms = [draw_map.Room("upper", 0, 1, (("", 10),)), draw_map.Room("lower", 1, 2, (("a", 3),))]
    imports = Counter({("upper", "lower"): 4})
    picture = draw_map.draw(rooms, imports)
    assert draw_map.faults(picture, rooms, imports) == []
    assert draw_map.faults(picture, rooms, Counter()) == ["upper does not import lower any more"]
    other = draw_map.Room("other", 2, 1, (("", 1),))
    more = imports + Counter({("lower", "other"): 1})
    assert draw_map.faults(picture, [*rooms, other], more) == [
        "room other is not on it",
        "lower imports other, which it does not show",
    ]
