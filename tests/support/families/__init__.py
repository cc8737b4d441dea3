"""Architectures that only the tests have, each one file as :mod:`spec_sdk.model.architectures` finds them."""
