"""A peer that answers with its prompt."""

ECHO = """
import os, sys
from spec_sdk.bench.peers.serving import own_stdout, serve
replies = own_stdout()
print("what a library prints is no reply")
def answer(request, take):
    take(request.tokens[:1])
    take(request.tokens[1:request.new_tokens])
serve(replies, answer, {"threads": sorted(n for n in os.environ if n.startswith("OMP_")), "mine": os.environ["MINE"]})
"""
