"""The layouts that are read. A new one is a file here and an entry of :data:`LAYOUTS`."""

from __future__ import annotations

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.head_files import HeadFiles
from spec_sdk.model.draft_heads.layouts.dflash import DFlashLayout
from spec_sdk.model.draft_heads.layouts.eagle import EagleLayout
from spec_sdk.model.draft_heads.layouts.eagle3 import Eagle3Layout
from spec_sdk.model.draft_heads.layouts.hydra import HydraLayout
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead
from spec_sdk.model.draft_heads.layouts.medusa import MedusaLayout, VllmMedusaLayout
from spec_sdk.model.draft_heads.layouts.mtp import MtpLayout
from spec_sdk.model.draft_heads.layouts.peagle import PEagleLayout
from spec_sdk.model.draft_heads.layouts.speculators import SpeculatorsLayout

LAYOUTS: tuple[DraftHeadLayout, ...] = (
    SpeculatorsLayout(),
    PEagleLayout(),
    Eagle3Layout(),
    EagleLayout(),
    DFlashLayout(),
    MedusaLayout(),
    VllmMedusaLayout(),
    HydraLayout(),
    MtpLayout(),
)
"""In the order in which they are tried: the first that recognises the files reads them."""


def read_head(files: HeadFiles) -> PublishedHead:
    """The head of these files. Raises UserError for files of no known layout."""
    for layout in LAYOUTS:
        if layout.recognises(files):
            return layout.read(files)
    called = f" (config.json calls it {', '.join(files.architectures)})" if files.architectures else ""
    known = ", ".join(layout.title for layout in LAYOUTS)
    raise UserError(f"{files.directory}: is no draft head of a known layout{called}; these are read: {known}")
