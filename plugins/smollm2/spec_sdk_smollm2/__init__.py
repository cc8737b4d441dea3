"""Drafts that were trained for SmolLM2-135M-Instruct, the default target. Found by what they were trained for."""
