"""What a layout is: one way in which draft heads are published, told by config.json and tensor names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.published_spec import PublishedSpec


@dataclass(frozen=True)
class PublishedHead:
    """A head as its files say it. ``layout``: in words; ``target``: the model that it was trained for, if they name it.

    ``where``: the directory, for errors; ``name``: a short label for reports.
    """

    layout: str
    spec: PublishedSpec
    tensors: HeadTensors
    where: str
    name: str
    target: str | None = None


class DraftHeadLayout(ABC):
    """Recognises the files of one layout, and reads them into a spec whose tensors have one set of names."""

    title: ClassVar[str]
    """What the layout is called in errors and reports."""

    @abstractmethod
    def recognises(self, files: HeadFiles) -> bool:
        """Whether the files are of this layout; looks at names only."""

    @abstractmethod
    def read(self, files: HeadFiles) -> PublishedHead:
        """Read them. Raises UserError for what is contradictory or not supported."""
