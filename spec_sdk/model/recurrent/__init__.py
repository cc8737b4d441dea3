"""Layers that carry a state from token to token, in the place of attention: what they compute, and what they keep."""
