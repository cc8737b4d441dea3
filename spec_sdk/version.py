"""The version of spec-sdk."""

__version__ = "0.1.0"
