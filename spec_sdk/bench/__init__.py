"""Timing on this machine: what passes of a model cost."""
