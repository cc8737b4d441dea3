"""Other programs' decoders, each in a process of its own: ``task=bench task.peers=…`` (docs/peers.md).

``serving`` and the workers run in the other program's interpreter, where nothing of spec-sdk need be installed: they,
and the packages above them, import the standard library and that program only.
"""
