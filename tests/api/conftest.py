"""A tiny model of texts, and engines on it."""

from __future__ import annotations

from tests.support.text_engine import OVERRIDES as OVERRIDES
from tests.support.text_engine import checkpoint as checkpoint
from tests.support.text_engine import engine as engine

PROMPTS = ("Why is the sky blue?", "Name three colours.", "What is the capital of France?", "One more, please.")
