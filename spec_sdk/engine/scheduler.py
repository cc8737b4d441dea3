"""The token cycle: propose, score, verify, commit. Every pipeline is this step with other plugins in it.

Legend: N tree nodes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import astuple, replace

from spec_sdk.contracts.drafter import Drafter, Hidden
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import Budget, Request, RequestState
from spec_sdk.contracts.verifier import Verifier
from spec_sdk.engine.begun_cycle import BegunCycle
from spec_sdk.engine.constrained_tree import constrained_tree
from spec_sdk.engine.cycle_events import StageSeconds, cycle_events
from spec_sdk.engine.drafting import Drafting
from spec_sdk.engine.forced_tokens import WIDEST, forced_run
from spec_sdk.engine.granted_budgets import granted_budgets
from spec_sdk.engine.pass_ahead import PassAhead, PlainSteps
from spec_sdk.engine.roster import Roster
from spec_sdk.engine.tapped_states import TappedStates
from spec_sdk.engine.target import Target
from spec_sdk.engine.time_shares import TimeShares
from spec_sdk.engine.told_logits import SCORED_CHUNK, own_logits, tell_logprobs, tell_prompt_logprobs, tell_traces
from spec_sdk.engine.tree_ahead import TreesAhead
from spec_sdk.engine.turn import Active, Emit, Progress, Turn, going_on
from spec_sdk.engine.verdicts_in_pass import VerdictsInPass
from spec_sdk.engine.verification import Verification
from spec_sdk.errors import CallOf, PluginFault
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.session import PREFILL_CHUNK
from spec_sdk.model.step_clock import HostClock, StepClock
from spec_sdk.ops import host_reads
from spec_sdk.tree import TokenTree


class Scheduler:
    """Serves requests together, as many at once as there are ``slots``; the others wait. They join and leave between
    steps.

    ``clock`` times the stages without waiting for the device in the middle of a step. ``takes_forced``: tokens that a
    request's constraint leaves no choice about are taken at once; otherwise they are drawn and drafted like others.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        policy: Policy,
        slots: int = 1,
        clock: StepClock | None = None,
        takes_forced: bool = True,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.policy = policy
        self._clock = clock or HostClock()
        self._takes_forced = takes_forced
        self._tapped = TappedStates(last_only=drafter.taps_last_only)
        self._time_shares = TimeShares()
        self._drafting = Drafting(drafter, target, self._tapped)
        self._roster = Roster(slots, self._drafting.finish)
        self._verification = Verification(verifier, drafter, target, self._roster)
        self._begun_ahead: BegunCycle | None = None
        self._pass_ahead: PassAhead | None = None
        self._plain_steps = PlainSteps(drafter)
        self._trees_ahead = TreesAhead(target, drafter)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.requests > 0

    @property
    def requests(self) -> int:
        """Requests that have not ended."""
        return len(self._roster)

    def add(self, state: RequestState, emit: Emit = lambda event: None) -> None:
        """Serve a request from the next step on, as soon as a slot is free.

        ``emit`` gets its events: ``request_start`` at once, ``prefill``, ``cycle`` …, ``request_end``.
        """
        emit({"event": "request_start", "request": state.id, "prompt_tokens": state.prompt_length})
        state.target = self.target
        self._roster.waiting.append(Active(state, emit, self._policy_of_a_request()))

    def _policy_of_a_request(self) -> Policy:
        with CallOf("policy", self.policy.name):
            policy: object = self.policy.for_request()
        if not isinstance(policy, Policy):
            raise PluginFault(f"policy {self.policy.name!r}: its for_request returned {policy!r}, which is no policy")
        return policy

    def cancel(self, request: int, reason: str = "interrupted") -> None:
        """End a request between steps; what was emitted stands. Does nothing if it has ended.

        ``reason``: the ``finish_reason`` of its last event. Raises what the drafter's ``finish`` fails with.
        """
        for active in self._roster.all():
            if active.state.id == request:
                fault = self._roster.leave(active)
                self._drop_begun()
                self._roster.events.end(active, reason if fault is None else "error")
                self._roster.events.emit()
                if fault is not None:
                    raise fault

    def run(self, state: RequestState, emit: Emit = lambda event: None) -> Generator[list[int]]:
        """Serve one request to its end, with the others that were added; yield its new tokens step by step.

        Closing the iterator cancels the request. What the request fails with is raised.
        """
        self.add(state, emit)
        try:
            while self.busy:
                for progress in self.step():
                    if progress.request != state.id:
                        continue
                    if progress.tokens:
                        yield progress.tokens
                    if progress.error is not None:
                        raise progress.error
                    if progress.finish_reason is not None:
                        return
        finally:
            self.cancel(state.id)

    def step(self) -> list[Progress]:
        """One chunk of one prompt, and one cycle for all requests whose prompt is done: what became of each.

        On a device that works while the host does not wait for it, the next cycle is begun before the events of this
        one are emitted; a request that joins has its first cycle behind that one, and a request may have tokens and
        then an error in one step. An interrupt inside a step ends every request as ``interrupted``: what the step has
        made is then known from events alone.
        """
        self._roster.progress = []
        try:
            self._admit()
            self._prefill()
            self._roster.events.emit()
            self._drop_begun()
            cycle, self._begun_ahead = self._begun_ahead, None
            self._finish(cycle or self._begin())
            self._begin_next()
            self._roster.events.emit()
        except BaseException:
            for active in self._roster.all():
                self._roster.end(active, "interrupted")
            with contextlib.suppress(Exception):
                # of two errors the first says more
                self._roster.events.emit()
            raise
        return self._roster.progress

    def _admit(self) -> None:
        """Give free slots to those that wait: of each, the one whose cache has most of the prompt."""
        while self._roster.waiting and self._roster.free:
            active = self._roster.waiting.popleft()
            state, prompt = active.state, active.state.tokens[:-1]
            given = state.encoder_input
            # what a cache has of a prompt gives no logits
            reusable = prompt if state.prompt_logprobs is None else []
            shared = {slot: self._shared(slot, reusable, given) for slot in self._roster.free}
            self._roster.admit(active, max(shared, key=lambda slot: (shared[slot], -slot)))
            with self._roster.ending([active]):
                began = self._clock.mark() if given is not None else None
                kept = self.target.open(state.slot, prompt, shared[state.slot] > 0, given)
                active.kept = kept
                if self.drafter.taps:
                    self._tapped.truncate(state.slot, kept)
                if given is not None:
                    # its encoder has run: the larger part of such a request's prefill
                    active.encoder_s = self._clock.seconds(began, self._clock.mark())
                    active.prefill_s += active.encoder_s

    def _shared(self, slot: int, prompt: Sequence[int], encoder_input: EncoderInput | None) -> int:
        """How many of a prompt's first tokens a slot's cache has, with the hidden states that the drafter taps."""
        shared = self.target.shared(slot, prompt, encoder_input)
        return shared if not self.drafter.taps or self._tapped.shared(slot, prompt) >= shared else 0

    def _prefill(self) -> None:
        """Feed a chunk of the oldest prompt that is not done; after its last one, let the drafter prepare."""
        active = next((active for active in self._roster.active if not active.prefilled), None)
        if active is None:
            return
        with self._roster.ending([active]):
            clock, began = self._clock, self._clock.mark()
            state, drafter = active.state, self.drafter
            # the pending token is the first tree's root
            done, prompt = self.target.length(state.slot), state.tokens[: state.prompt_length - 1]
            most = PREFILL_CHUNK if state.prompt_logprobs is None else SCORED_CHUNK
            if chunk := prompt[done : done + most]:
                hidden = self._fed(active, chunk)
                if drafter.taps:
                    self._tapped.append(state.slot, chunk, hidden)
            active.prefilled = done + len(chunk) == len(prompt)
            if not active.prefilled:
                active.prefill_s += clock.seconds(began, clock.mark())
                return
            # a drafter need not be prepared before it is asked
            drafts = self._budgets([active])[0].depth > 0
            drafter_s = self._drafting.start([active], clock) if drafts else None
            self._take_forced(active, ends=False)
            self._roster.events.note(
                active,
                event="prefill",
                seconds=active.prefill_s + clock.seconds(began, clock.mark()),
                drafter_s=drafter_s,
                tokens=state.prompt_length - 1,
                draft=drafter.draft_name,
                **({} if active.encoder_s is None else {"encoder_s": active.encoder_s}),
                **({"kept": active.kept} if active.kept else {}),
                **({} if state.prompt_logprobs is None else {"logprobs": [astuple(t) for t in active.prompt_logprobs]}),
            )

    def _fed(self, active: Active, chunk: Sequence[int]) -> Hidden:
        """Commit a chunk of a request's prompt; its tapped states. Tell of its log-probabilities if that is asked."""
        state, taps = active.state, self.drafter.taps
        if state.prompt_logprobs is None and not self.drafter.taps_last_only:
            return self.target.prefill(state.slot, chunk, taps)
        if state.prompt_logprobs is None:
            last = int(self.target.length(state.slot) + len(chunk) == state.prompt_length - 1)
            self.target.prefill(state.slot, chunk[: len(chunk) - last])
            return self.target.prefill(state.slot, chunk[-1:], taps) if last else {}
        scores = self.target.prefill_scored(state.slot, chunk, taps)
        committed = self.target.length(state.slot)
        tell_prompt_logprobs(active, state.tokens[committed - len(chunk) + 1 : committed + 1], scores.logits_NV)
        return scores.hidden

    def _begin(self) -> BegunCycle:
        """Drafts, and the pass over them."""
        reads, marks = host_reads.total(), [self._clock.mark()]
        turns: list[Turn] = self._propose([active for active in self._roster.active if active.prefilled])
        marks.append(self._clock.mark())
        ahead, self._pass_ahead, verdicts = self._pass_ahead, None, None
        taken = ahead is not None and ahead.hand_out(self.target, turns)
        launched = self._trees_ahead.hand_out(turns)
        if launched is not None:
            # drafting ended where that pass began
            marks[1] = launched.began
        if ahead is not None and taken:
            verdicts = ahead.verdicts
        elif launched is None or not launched.taken:
            turns, verdicts = self._score(turns)
        marks.append(launched.ended if launched is not None and launched.taken else self._clock.mark())
        for turn in turns:
            with self._roster.ending([turn.active]):
                turn.read_tree()
        return BegunCycle(turns, verdicts, marks, host_reads.total() - reads, ahead, taken)

    def _begin_next(self) -> None:
        """Where the device works on while the host does other things, give it the next cycle's pass: what a step tells,
        and what is made of its tokens, is then no time that the device waits for. Not where a request is about to join.
        """
        joining = bool(self._roster.waiting and self._roster.free) or not all(
            active.prefilled for active in self._roster.active
        )
        if joining or not self.target.one_launch or self._pass_ahead is not None:
            return
        cycle = self._begin()
        self._begun_ahead = cycle if cycle.turns else None

    def _finish(self, cycle: BegunCycle) -> None:
        """The verdicts, and what follows from them."""
        reads, turns, verdicts = host_reads.total(), going_on(cycle.turns), cycle.verdicts
        # to be asked of every cycle, also of those whose verdicts come behind the pass
        goes_on = self._plain_steps.go_on(turns) and verdicts is not None
        # what the pass has decided takes no time of its own
        in_pass = bool(turns) and all(turn.pending is not None and turn.active.state.logprobs is None for turn in turns)
        # since the pass there may have been time that is no stage's
        resumed = None if in_pass and not goes_on else self._clock.mark()
        if verdicts is not None and goes_on:
            self._pass_ahead = PassAhead.launch(self.target, turns, verdicts, self.drafter.taps, self._clock, resumed)
        own = own_logits(turns)
        turns = self._verification.verify(turns)
        if telling := [turn for turn in turns if turn.active.state.logprobs is not None]:
            with self._roster.ending([turn.active for turn in telling]):
                tell_logprobs(telling, own)
            turns = going_on(turns)
        # behind a pass ahead a mark would come after that; these verdicts were part of one before
        decided = None if in_pass or self._pass_ahead is not None else self._clock.mark()
        if self._pass_ahead is not None:
            self._pass_ahead.learn(turns)
        # its time is no stage's
        if traced := [turn for turn in turns if turn.active.state.trace]:
            with self._roster.ending([turn.active for turn in traced]):
                tell_traces(traced, own)
            turns = going_on(turns)
        # the host's own time: what it commits, the device does while the next step begins
        began = time.perf_counter()
        turns = self._commit(turns)
        # where a pass ahead runs meanwhile, nothing waits for it
        recover_s = time.perf_counter() - began if self._pass_ahead is None else 0.0
        draft_s, score_s = cycle.stage_seconds(self._clock)
        verdict_s = 0.0 if decided is None else self._clock.seconds(resumed, decided)
        seconds = StageSeconds(draft_s, score_s, verdict_s, recover_s)
        self._report(turns, seconds, cycle.reads + host_reads.total() - reads)

    def _propose(self, requests: Sequence[Active]) -> list[Turn]:
        """A tree for every request that is granted one; a root alone, a plain decoding step, for the others."""
        turns: list[Turn] = []
        with self._roster.ending(requests):
            for active, budget in zip(requests, self._budgets(requests), strict=True):
                root, prefix = TokenTree.root_only(active.view.pending_token), self.target.length(active.slot)
                unscored = active.state.tokens[prefix:]
                if len(unscored) > 1 and (self.drafter.taps or not self.drafter.drafts_ahead):
                    budget = replace(budget, depth=0)
                turns.append(Turn(active, budget, prefix, root, taken=unscored[1:], above=unscored[:-1]))
        asked = [turn for turn in turns if turn.budget.depth > 0]
        if not asked:
            return turns
        with self._roster.ending([turn.active for turn in asked]):
            if late := [turn for turn in asked if not turn.active.drafting]:
                started_s = self._drafting.start([turn.active for turn in late], self._clock)
                for turn in late:
                    turn.start_s = started_s / len(late)
            with self._drafting.proposing(asked), self._trees_ahead.while_proposing(turns, asked, self._clock):
                trees = self.drafter.propose([turn.active.view for turn in asked], [turn.budget for turn in asked])
            self._drafting.check_count(trees, asked)
            for turn, tree in zip(asked, trees, strict=True):
                with self._roster.ending([turn.active]):
                    self._drafting.check(tree, turn)
                    turn.tree = tree
                    if turn.active.view.constrained:
                        self._constrain(turn)
        return going_on(turns)

    def _constrain(self, turn: Turn) -> None:
        """Take out of a drafted tree what the request's constraint rules out, and add what it forces."""
        began, state = time.perf_counter(), turn.active.state
        turn.constrained = constrained_tree(turn.tree, state.view, turn.budget, self._takes_forced)
        turn.tree = turn.constrained.tree
        state.constraint_s += time.perf_counter() - began

    def _score(self, turns: list[Turn]) -> tuple[list[Turn], VerdictsInPass | None]:
        """The target's logits at every node of every tree; without those of a request that a failed pass names. With
        the verdicts that the pass made, if it did.
        """
        for turn in turns:
            if len(turn.above) > WIDEST and not turn.active.asks_for_logits:
                self._feed_forced(turn)
        turns = going_on(turns)
        scored, ahead, in_pass = False, self._verification.ahead(turns), None
        turns = going_on(turns)
        while turns and not scored:
            with self._roster.ending([turn.active for turn in turns]):
                slots, trees = [turn.active.slot for turn in turns], [turn.scored for turn in turns]
                taps, told = self.drafter.taps, [ahead[turn.active.slot] for turn in turns if ahead]
                in_pass = None
                if told:
                    in_pass = VerdictsInPass(told)
                    for i, scores in enumerate(self.target.score(slots, trees, taps, in_pass.epilogue)):
                        turns[i].scores, turns[i].pending = scores, in_pass.pending(i, scores.made)
                else:
                    for turn, scores in zip(turns, self.target.score(slots, trees, taps), strict=True):
                        turn.scores = scores
                scored = True
            turns = going_on(turns)
        return turns, in_pass

    def _feed_forced(self, turn: Turn) -> None:
        """Make K and V of a long forced run in passes without logits; the tree's pass is then as wide as the tree."""
        with self._roster.ending([turn.active]):
            turn.fed_hidden = self.target.prefill(turn.active.slot, turn.above, self.drafter.taps)
            if self.drafter.taps:
                self._tapped.append(turn.active.slot, turn.above, turn.fed_hidden)
            turn.above = []

    def _commit(self, turns: list[Turn]) -> list[Turn]:
        """Keep the accepted paths, tell the drafter."""
        with self._roster.ending([turn.active for turn in turns]):
            if turns:
                self.target.commit([turn.active.slot for turn in turns], [turn.rows for turn in turns])
            for turn in turns:
                if self.drafter.taps:
                    rows = [turn.scored.token_N[row] for row in turn.rows]
                    self._tapped.append(turn.active.slot, rows, turn.pass_hidden)
                turn.active.state.tokens.extend(turn.tokens)
                turn.active.state.unfollowed.clear()
                turn.active.state.step += 1
        told = [turn for turn in going_on(turns) if turn.active.drafting]
        with self._roster.ending([turn.active for turn in told]):
            if told:
                self._drafting.observe(told)
        for turn in going_on(turns):
            if turn.active.view.constrained and self._finished(turn.active.view) is None:
                with self._roster.ending([turn.active]):
                    turn.ending = self._take_forced(turn.active, ends=not turn.active.asks_for_logits)
        return going_on(turns)

    def _take_forced(self, active: Active, ends: bool) -> list[int]:
        """Let the request's text go on with what its constraint forces, and tell the drafter. The next pass makes K and
        V of it, and its turn emits it; returned is what needs none, a run that ends the answer.

        Where ``ends`` is false the last token of such a run is left to a step: the answer is not to end here.
        """
        state, request = active.state, active.view
        if not (self._takes_forced and request.constrained):
            return []
        began = time.perf_counter()
        room = min(request.max_new_tokens - request.new_tokens, self.target.context - len(request.tokens))
        run, at_end = forced_run(request, room)
        if active.asks_for_logits and len(run) > WIDEST:
            # each of its rows is asked for logits: the next steps take the rest
            del run[WIDEST:]
            at_end = False
        if at_end and not ends:
            run.pop()
        state.constraint_s += time.perf_counter() - began
        state.tokens.extend(run)
        if run and active.drafting:
            self._drafting.observe_forced(active, run)
        return run if at_end and ends else []

    def _report(self, turns: Sequence[Turn], seconds: StageSeconds, reads: int) -> None:
        """Tell what happened; requests that have ended leave."""
        for turn, event in zip(turns, cycle_events(turns, seconds, self._time_shares, reads), strict=True):
            active = turn.active
            self._roster.events.note(active, **event)
            reason = self._finished(active.view)
            self._roster.progress.append(Progress(active.state.id, turn.emitted, reason))
            if reason is not None:
                self._roster.end(active, reason)

    def _budgets(self, requests: Sequence[Active]) -> list[Budget]:
        return granted_budgets(self.policy, requests, self.target.context, self.target.deepest_tree)

    def _finished(self, request: Request) -> str | None:
        if request.new_tokens and request.tokens[-1] in request.stop_ids:
            return "stop"
        if request.new_tokens >= request.max_new_tokens or len(request.tokens) >= self.target.context:
            return "length"
        return None

    def _drop_begun(self) -> None:
        """Where a cycle is begun of which no request goes on, another one may begin."""
        if self._begun_ahead is not None and not going_on(self._begun_ahead.turns):
            self._begun_ahead = None
