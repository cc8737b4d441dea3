"""The peers of ``task=bench task.peers=[…]``: which there are, and how each is given the run's target."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_sdk.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from spec_sdk.bench.candidate import Candidate, Entrant
    from spec_sdk.bench.peers.weights import Weights

TRANSFORMERS, LLAMA = "transformers", "llama_cpp"
PEERS = (TRANSFORMERS, "transformers_lookup", "transformers_assistant", LLAMA, "llama_cpp_lookup")


@dataclass(frozen=True)
class PeerModels:
    """What peers are given. ``target`` and ``dtype`` as the run has them, ``device`` as torch names it.

    ``assistant``: what ``model.draft`` may be, ``draft_layers`` as for the run. ``context``: tokens of the longest
    prompt and its answer. ``kept_in_bits``: whether the run keeps matrices in few bits that its file has in so many.
    """

    target: str
    dtype: str
    device: str
    assistant: str
    draft_layers: str | Sequence[int]
    context: int
    kept_in_bits: Callable[[int], bool]


def checked_peers(given: object, option: str) -> list[str]:
    """The names that an option has, a list or one of them. Raises UserError, naming the option."""
    names: list[str] = []
    for name in [] if given is None else given if isinstance(given, list) else [given]:
        if name not in PEERS:
            raise UserError(f"{option}: unknown peer {name!r}{did_you_mean(str(name), PEERS)}")
        if name in names:
            raise UserError(f"{option}: {name} stands there twice")
        names.append(name)
    return names


def peers_of(
    names: Sequence[str], models: PeerModels, transformers_python: str | None, llama_python: str | None
) -> list[Entrant]:
    """The peers of these names, to be started later; the interpreters are this one's where None."""
    from spec_sdk.bench.candidate import Entrant
    from spec_sdk.bench.peers.weights import weights_for_peers

    weights = functools.cache(lambda: weights_for_peers(models.target, models.dtype))

    def opener(name: str) -> Callable[[], Candidate]:
        if name.startswith(TRANSFORMERS):
            return lambda: _transformers(name, models, weights(), transformers_python)
        return lambda: _llama(name, models, weights(), llama_python)

    return [Entrant(name, opener(name)) for name in names]


def _transformers(name: str, models: PeerModels, weights: Weights, python: str | None) -> Candidate:
    from spec_sdk.bench.peers.assistant import assistant_of
    from spec_sdk.bench.peers.candidate import PeerCandidate
    from spec_sdk.bench.peers.commands import TRANSFORMERS_LOOKUP, transformers_command
    from spec_sdk.bench.peers.interpreter import found

    lookup, assistant, draft = name.endswith("_lookup"), None, None
    if lookup:
        draft = f"prompt lookup, {TRANSFORMERS_LOOKUP} tokens"
    elif name.endswith("_assistant"):
        assistant = assistant_of(models.target, models.assistant, models.draft_layers, models.dtype)
        draft = assistant.name
    command = transformers_command(found(python), weights.directory, models.dtype, models.device, lookup, assistant)
    facts = {"program": TRANSFORMERS, "python": command[0], "weights": models.dtype}
    return PeerCandidate(name, command, draft, facts)


def _llama(name: str, models: PeerModels, weights: Weights, python: str | None) -> Candidate:
    from spec_sdk.bench.candidate import CandidateError
    from spec_sdk.bench.peers.candidate import PeerCandidate
    from spec_sdk.bench.peers.commands import llama_command, lookup_tokens
    from spec_sdk.bench.peers.interpreter import found
    from spec_sdk.bench.peers.weights import KINDS

    in_bits = weights.bits is not None and models.kept_in_bits(weights.bits)
    file = weights.in_bits if in_bits else weights.plain
    if file is None:
        raise CandidateError("it takes a GGUF file; give one as model.target")
    lookup = name.endswith("_lookup")
    command = llama_command(found(python), file, models.context, models.device, lookup)
    kind = "as in the file" if in_bits else KINDS[models.dtype]
    draft = f"prompt lookup, {lookup_tokens(models.device)} tokens" if lookup else None
    facts = {"program": "llama.cpp", "python": command[0], "weights": kind}
    # it gives accepted drafts one by one
    return PeerCandidate(name, command, draft, facts, steps_are_groups=not lookup)
