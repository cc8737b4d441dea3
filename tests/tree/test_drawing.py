"""Drawings of verified trees."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from spec_sdk.contracts import Verdict
from spec_sdk.tree import TreeBuilder
from spec_sdk.tree_drawing import tree_svg, tree_text

WORDS = {1: " the", 2: " cat", 3: " <dog>", 4: " sat", 5: "\n", 6: " mat"}


def verdict() -> Verdict:
    builder = TreeBuilder(1)
    cat = builder.add(0, 2, "chosen", drafter="a")
    builder.add(0, 3, "chosen", drafter="a")
    builder.add(0, 2, "chosen", drafter="b")
    builder.add(cat, 4, "chosen", drafter="a")
    builder.add(cat, 5, "chosen", drafter="a")
    return Verdict([0, 1, 2], 6, builder.build().tree)


def test_text_marks_the_accepted_path_and_tells_of_every_draw() -> None:
    lines = tree_text(verdict(), WORDS.__getitem__).splitlines()
    assert [line[0] for line in lines] == ["*", "*", "*", " ", " ", "+"]
    assert [line.split("'")[1] for line in lines] == [" the", " cat", " sat", "\\n", " <dog>", " mat"]
    assert lines[1].endswith("end   4  a chosen, b chosen")
    assert lines[0].endswith("end   5  pending token")


def test_svg_is_well_formed_and_has_every_node_and_edge() -> None:
    root = ElementTree.fromstring(tree_svg(verdict(), WORDS.__getitem__, "cycle 1 < 2"))
    names = [element.tag.split("}")[1] for element in root.iter()]
    assert names.count("g") == 6 and names.count("line") == 5
    filled = [e for e in root.iter() if e.tag.endswith("rect") and e.get("fill") == "#dafbe1"]
    assert len(filled) == 4
    assert "cycle 1 < 2" in "".join(root.itertext()) and "<dog>" in "".join(root.itertext())
