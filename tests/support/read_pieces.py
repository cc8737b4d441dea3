"""Readers of answers, and texts that are cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from spec_sdk.serve.reading.pieces import Call, Content, Piece, Reader, Thought


def read(reader: Reader, texts: Iterable[str]) -> list[Piece]:
    """What a text comes to that is pushed in parts; neighbours of a kind are joined."""
    pieces = [piece for text in texts for piece in reader.push(text)] + reader.flush()
    joined: list[Piece] = []
    for piece in pieces:
        assert isinstance(piece, Call) or piece.text, "an empty piece"
        last = joined[-1] if joined else None
        if isinstance(piece, Thought) and isinstance(last, Thought):
            joined[-1] = Thought(last.text + piece.text)
        elif isinstance(piece, Content) and isinstance(last, Content):
            joined[-1] = Content(last.text + piece.text)
        else:
            joined.append(piece)
    return joined


def cuts(fragments: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Texts that are made of these fragments and others, in parts: the fragments themselves are cut too."""
    words = st.sampled_from([*fragments, " ", "\n", "a", "<", "{", '"', "\\"])
    return st.lists(words | st.text("ab<>/\n {}", max_size=3), max_size=14).map("".join).flatmap(_cut)


def _cut(text: str) -> st.SearchStrategy[list[str]]:
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return places.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
