"""Measuring: timing, memory, machines, what passes cost, and what scripts that measure share."""
