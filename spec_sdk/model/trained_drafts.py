"""Drafts that installed packages bring: which of them was trained for a target.

A package of drafts holds a directory for each, as ``task=train_draft`` writes it. Its ``training.json`` says by what
``method`` it drafts, and for which target it was trained (``target_identity``).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from spec_sdk.installed import draft_packages
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.target_identity import target_identity

FACTS = "training.json"


def trained_draft(target: ModelSource, methods: Collection[str]) -> Path | None:
    """The first draft of one of the ``methods`` that was trained for ``target``; None where there is none.

    Raises UserError for facts of a draft that are no JSON object.
    """
    identity = target_identity(target)
    for package in draft_packages():
        for path in sorted(package.glob(f"*/{FACTS}")):
            facts = read_json_object(path)
            if facts.get("method") in methods and facts.get("target_identity") == identity:
                return path.parent
    return None
