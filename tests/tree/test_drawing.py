"""Drawings of verified trees."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from spec_sdk.contracts import Verdict
from spec_sdk.tree import TreeBuilder
from spec_sdk.tree_drawing import LONGEST, tree_svg, tree_text

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


def test_text_draws_the_branches() -> None:
    assert [line[:17].rstrip() for line in tree_text(verdict(), WORDS.__getitem__).splitlines()] == [
        "*   0  ' the'",
        "*   1  ├─ ' cat'",
        "*   2  │  ├─ ' sat'"[:17],
        "    3  │  └─ '\\n'",
        "    4  └─ ' <dog>'"[:17],
        "+            └─ ' mat'"[:17],
    ]


def test_what_comes_after_the_answers_end_is_not_marked() -> None:
    lines = tree_text(verdict(), WORDS.__getitem__, emitted=1).splitlines()
    assert [line[0] for line in lines] == ["*", "*", "-", " ", " "]
    root = ElementTree.fromstring(tree_svg(verdict(), WORDS.__getitem__, "", emitted=1))
    assert len([e for e in root.iter() if e.get("fill") == "#dafbe1"]) == 2
    assert tree_text(verdict(), WORDS.__getitem__, emitted=3) == tree_text(verdict(), WORDS.__getitem__)


def test_a_deep_and_wide_tree_stays_in_its_columns_and_boxes() -> None:
    builder, node = TreeBuilder(0), 0
    for depth in range(20):
        node, *_ = [builder.add(node, 3 * depth + i, "chosen", drafter="a") for i in range(1, 4)]
    tree = builder.build().tree
    words = ["\n\n\n\n\n", "responsibilities", "x", "'\"", "\x00\x01", "日本"]
    shown = Verdict(tree.path_to(1), 5, tree)
    lines = tree_text(shown, lambda token: words[token % 6]).splitlines()
    assert tree.size == 61 and len(lines) == 62
    assert len({line.index(" end ") for line in lines[:-1]}) == 1
    root = ElementTree.fromstring(tree_svg(shown, lambda token: words[token % 6], ""))
    assert max(len(e.text or "") for e in root.iter() if e.tag.endswith("text")) <= LONGEST


def test_svg_is_well_formed_and_has_every_node_and_edge() -> None:
    root = ElementTree.fromstring(tree_svg(verdict(), WORDS.__getitem__, "cycle 1 < 2"))
    names = [element.tag.split("}")[1] for element in root.iter()]
    assert names.count("g") == 6 and names.count("line") == 5
    filled = [e for e in root.iter() if e.tag.endswith("rect") and e.get("fill") == "#dafbe1"]
    assert len(filled) == 4
    assert "cycle 1 < 2" in "".join(root.itertext()) and "<dog>" in "".join(root.itertext())
