"""Attention-level speculation on two device groups: SGDC with priority gating (ALSpec, §4.2, Alg. 2, Fig. 6).

Both groups hold the whole target and walk through the same operations, layer after layer. Which of them computes, and
which skips, follows from the priority vector p, of which each group holds an entry. A pass begins with p = [2, 0]; both
groups have the right state then, since it is the tokens' embedding.

Per layer, on group k:

1. ``pre_attention`` if p[k] ≠ 0.
2. p is agreed on. The group of the highest priority has the right state and is the *sender*, the other the *receiver*.
3. The sender sends the state h that enters the layer, with the K and V that it made of h. It computes the prediction Â
   and sends it on at once, then the exact attention A, and verifies. Its p becomes 0 on a hit, 2 on a miss.
   The receiver waits for h and Â only; its p becomes 1.
4. ``project`` and ``post_attention`` if p[k] ≠ 0: the receiver's on h and Â, while the sender still reads keys; the
   sender's on A, after a miss.

Who has what after layer i, with sender s and receiver r:

- hit: r has the right state and has begun layer i + 1, where it is the sender (p[s] = 0, p[r] = 1). s computed nothing
  after its attention; it gets h of layer i + 1 from r.
- miss: s has the right state and stays the sender (p[s] = 2, p[r] = 1). What r computed from Â, ``pre_attention`` of
  layer i + 1 included, is dropped; it gets h of layer i + 1 from s, as if it had skipped.
- a layer where nothing is guessed: s computes it alone, r waits: p[s] = 2, p[r] = 0.

K and V of a layer are always those of its sender, made of the right state, so that both caches are equal, bit for bit.
They travel with h, and the receiver writes them when it waits for the next message anyway: they are needed in the next
pass, since in this one the sender alone reads them. The state of a recurrent layer does not travel: the receiver makes
the same of h then. Of p only the sender's entry is news (the receiver's is 1), so that
the all-gather of Alg. 2 is one message here, from the sender, which does not wait; with it go the errors that the
pass's report tells, on every rank. After the last layer the group that has the right state gives it to the other, and
all ranks compute the output head together.

A group of several ranks is tensor parallel: rank i of a group and rank i of the other hold the same heads, and talk to
each other only. The ranks of a group sum the norms of their heads, so that they come to one verdict. Each rank's host
takes one decision per layer, that of step 3 or what it is told of it.

A pass whose context is so short that nothing is guessed is computed by both groups, as prefill is.

Legend: B batch, N tokens, n live rows, M model dim, H query heads, G KV heads, D head dim, L layers,
X = M + 2GD, C chunks of keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier, Predictor
from spec_sdk.model.block_runner import LayerMeasurement, PassMeasurement, read_reports
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.lipschitz import TokenStates
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner, Estimate, padded
from spec_sdk.ranks import DeviceGroups, Wait

SKIP, AHEAD, RIGHT = 0, 1, 2
"""Priorities: nothing to go on with; a prediction to go on with; the right state."""


class SpeculativeGroupsRunner(AttentionSpeculativeRunner):
    """What :class:`AttentionSpeculativeRunner` computes, with exact attention and what follows it side by side.

    ``groups``: the two device groups, of which one holds ``decoder``, or this rank's shard of it, and the other a copy.
    Which group is ahead is one request's business, so requests that make a pass together take turns.
    """

    name = "speculative_groups"

    def __init__(
        self,
        make_predictor: Callable[[], Predictor],
        verifier: AttentionVerifier,
        groups: DeviceGroups,
        estimate: Estimate | None = None,
    ) -> None:
        super().__init__(make_predictor, verifier, groups.group.all_reduce, estimate)
        self.groups = groups

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        states, reports = [], []
        for part in work.inputs.parts:
            own, rows = slice(part.index, part.index + 1), slice(part.live)
            alone = work.of_rows(own, rows, work.inputs.request(part.index))
            states.append((self._run_one(decoder, h_BNM[own, rows], alone), alone))
            reports += self._reports
        self._reports = reports
        width = work.inputs.width
        for layer in work.taps - {0}:
            work.record(layer, padded([alone.hidden[layer] for _, alone in states], width))
        return padded([state_BNM for state_BNM, _ in states], width)

    def _run_one(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        (part,) = work.inputs.parts
        if self.predictor(part.slot).always_exact(part.mask.prefix):
            return super().run(decoder, h_BNM, work)
        done = _Pass(self, decoder, work, h_BNM)
        states = done.run(h_BNM)
        for layer, state_BNM in enumerate(states[1:], 1):
            work.record(layer, state_BNM)
        constants = None
        if self._estimate is not None and part.slot not in self._estimated:
            first = TokenStates([state_BNM[:1, :1].contiguous() for state_BNM in states[:-1]], [])
            constants = functools.partial(self._estimate, decoder, first, work, part)
            self._estimated.add(part.slot)
        norms: list[torch.Tensor] = []
        if self._estimate is not None:
            norms = list(torch.linalg.vector_norm(torch.stack(states).float(), dim=-1).flatten(1).amax(1))
        self._reports = read_reports([PassMeasurement(done.measured, norms, self.verifier.space, constants)])
        return states[-1]


class _Pass:
    """One request's pass over all layers, as one group sees it.

    ``measured``: per layer what its verdict was made of, on both groups; None where nothing was guessed.
    """

    def __init__(
        self, runner: SpeculativeGroupsRunner, decoder: Decoder, work: ForwardPass, h_BNM: torch.Tensor
    ) -> None:
        self.measured: list[LayerMeasurement | None] = [None] * decoder.layers
        self._runner = runner
        self._decoder = decoder
        self._work = work
        (self._part,) = work.inputs.parts
        self._predictor = runner.predictor(self._part.slot)
        self._shape = h_BNM.shape
        self._like = h_BNM
        self._peer = runner.groups.peer
        self._me = runner.groups.index
        self._priority = [RIGHT, SKIP]
        # the outcome that this group, as the receiver, still has to be told
        self._outcome: tuple[torch.Tensor, Wait] | None = None
        # what it has put off until it waits for the other group anyway, or to the end of the pass
        self._idle: list[Callable[[], None]] = []
        self._last: list[Callable[[], None]] = []

    def run(self, h_BNM: torch.Tensor) -> list[torch.Tensor]:
        """The right states entering layer 0, 1, … and leaving the last, each [B, N, M], on both groups."""
        decoder, states = self._decoder, []
        qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        a_BNM: torch.Tensor | None
        for layer in range(decoder.layers):
            if self._computes:
                qkv = decoder.pre_attention(layer, h_BNM, self._work)
            self._agree()
            if self._is_sender:
                assert qkv is not None
                a_BNM = self._send(layer, h_BNM, *qkv)
            else:
                h_BNM, a_BNM = self._receive(layer)
            states.append(h_BNM)
            if self._computes:
                assert a_BNM is not None
                h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
        self._agree()
        if self._is_sender:
            self._peer.send(h_BNM.contiguous())
        else:
            h_BNM = self._like.new_empty(self._shape)
            self._peer.receive(h_BNM)()
        for finish in (*self._idle, *self._last):
            finish()
        self._peer.flush()
        return [*states, h_BNM]

    @property
    def _computes(self) -> bool:
        return self._priority[self._me] != SKIP

    @property
    def _is_sender(self) -> bool:
        return self._priority[self._me] > self._priority[1 - self._me]

    def _agree(self) -> None:
        """Both entries of p are known after it, on both groups."""
        if self._outcome is not None:
            outcome, told = self._outcome
            told()
            self._priority[1 - self._me] = int(outcome[0])
            self._outcome = None

    def _send(
        self, layer: int, h_BNM: torch.Tensor, q_BNHD: torch.Tensor, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor
    ) -> torch.Tensor | None:
        """The attention sub-layer's output [B, N, M] if this group goes on with it; None if the other one does."""
        decoder, runner, work = self._decoder, self._runner, self._work
        kv = (k_BNGD.flatten(2), v_BNGD.flatten(2)) if self._sends_kv(layer) else ()
        self._peer.send(torch.cat((h_BNM, *kv), -1))
        decoder.write_kv(layer, k_BNGD, v_BNGD, work)
        if not runner.verifier.speculates(layer):
            self._set(RIGHT, SKIP)
            return decoder.project(layer, decoder.attend(layer, q_BNHD, work))
        k_BGSD, v_BGSD = work.cache.keys_values(0, layer, layer + 1)
        attention = self._predictor.speculate(
            layer,
            q_BNHD,
            k_BGSD,
            v_BGSD,
            self._part.mask,
            work.ops,
            lambda predicted: self._peer.send(predicted.contiguous()),
        )
        measured, projected = runner.measure(decoder, layer, attention)
        self.measured[layer] = measured
        hit = bool(measured.verdict.hit_B)
        self._set(SKIP if hit else RIGHT, AHEAD)
        errors = measured.difference_Bn.flatten(), measured.verdict.error_BN.flatten()
        self._peer.send(torch.cat((errors[0].new_full((1,), SKIP if hit else RIGHT), *errors)).float())
        if attention.chunk_lse_BNHC is not None:
            self._peer.send(attention.chunk_lse_BNHC.contiguous())
            self._predictor.learn(layer, attention.chunk_lse_BNHC)
        if hit:
            return None
        return projected[1] if projected is not None else decoder.project(layer, attention.exact_BNHD)

    def _receive(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The right state [B, N, M] that enters the layer, and the output that the prediction gives, if there is one.

        All of the layer's messages are asked for at once: one that is awaited travels without being announced first.
        """
        decoder, runner, peer = self._decoder, self._runner, self._peer
        config, guessed = decoder.config, runner.verifier.speculates(layer)
        B, N, M = self._shape
        G, D = config.num_kv_heads if self._sends_kv(layer) else 0, config.head_dim
        state_BNX = self._like.new_empty((B, N, M + 2 * G * D))
        state = peer.receive(state_BNX)
        if not guessed:
            self._set(SKIP, RIGHT)
            self._use_idle_time()
            state()
            keep = self._write_kv if self._sends_kv(layer) else self._remake
            self._idle.append(functools.partial(keep, layer, state_BNX))
            return state_BNX[..., :M], None
        predicted_BNHD = self._like.new_empty((B, N, config.num_heads, D))
        prediction = peer.receive(predicted_BNHD)
        outcome = torch.empty(1 + 2 * B * N, device=self._like.device)
        told = peer.receive(outcome)
        if self._predictor.chunk:
            chunks = -(-self._part.mask.prefix // self._predictor.chunk)
            lse_BNHC = torch.empty((B, N, config.num_heads, chunks), device=self._like.device)
            self._last += [peer.receive(lse_BNHC), functools.partial(self._predictor.learn, layer, lse_BNHC)]
        # its own entry; the sender's is not known before _agree
        self._priority[self._me] = AHEAD
        self._outcome = outcome, told
        self._use_idle_time()
        state()
        self._idle.append(functools.partial(self._write_kv, layer, state_BNX))
        self._last.append(functools.partial(self._note, layer, outcome))
        prediction()
        return state_BNX[..., :M], decoder.project(layer, predicted_BNHD)

    def _use_idle_time(self) -> None:
        for act in self._idle:
            act()
        self._idle.clear()

    def _note(self, layer: int, outcome: torch.Tensor) -> None:
        difference_Bn, error_Bn = outcome[1:].view(2, self._shape[0], -1)
        self.measured[layer] = LayerMeasurement(AttentionVerdict(outcome[:1] == SKIP, error_Bn), difference_Bn)

    def _write_kv(self, layer: int, state_BNX: torch.Tensor) -> None:
        B, N, M = self._shape
        kv_BNXD = state_BNX[..., M:].reshape(B, N, -1, self._decoder.config.head_dim)
        k_BNGD, v_BNGD = kv_BNXD.chunk(2, dim=2)
        self._decoder.write_kv(layer, k_BNGD, v_BNGD, self._work)

    def _sends_kv(self, layer: int) -> bool:
        block = self._decoder.blocks[layer]
        return block.attends and block.mixer is None

    def _remake(self, layer: int, h_BNM: torch.Tensor) -> None:
        """What the sender's attention sub-layer left behind."""
        decoder, work = self._decoder, self._work
        q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
        decoder.write_kv(layer, k_BNGD, v_BNGD, work)
        decoder.attend(layer, q_BNHD, work)

    def _set(self, mine: int, other: int) -> None:
        self._priority[self._me], self._priority[1 - self._me] = mine, other
