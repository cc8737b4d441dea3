"""The token cycle: propose, score, verify, commit. Every pipeline is this step with other plugins in it.

Legend: M model dim, N tree nodes.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from spec_sdk.contracts.constraint import in_words
from spec_sdk.contracts.drafter import Drafter
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import Budget, Request, RequestState, Verdict
from spec_sdk.contracts.verifier import Ahead, Verifier
from spec_sdk.engine.begun_cycle import BegunCycle
from spec_sdk.engine.committed_tokens import clip, followed, penalised
from spec_sdk.engine.constrained_tree import constrained_tree
from spec_sdk.engine.cycle_events import StageSeconds, cycle_events
from spec_sdk.engine.faults import count_fault, draws_fault, tree_fault, verdict_fault
from spec_sdk.engine.forced_tokens import WIDEST, forced_run
from spec_sdk.engine.granted_budgets import granted_budgets
from spec_sdk.engine.pass_ahead import PassAhead, PlainSteps
from spec_sdk.engine.step_trace import Traced, read_traces
from spec_sdk.engine.tapped_states import TappedStates
from spec_sdk.engine.target import Target
from spec_sdk.engine.time_shares import TimeShares
from spec_sdk.engine.token_logprobs import Asked, read_logprobs
from spec_sdk.engine.told_events import ToldEvents
from spec_sdk.engine.turn import Active, Emit, Progress, Turn
from spec_sdk.engine.verdicts_in_pass import VerdictsInPass
from spec_sdk.errors import (
    CallOf,
    ConstraintLimit,
    PluginFault,
    RequestError,
    UnusableLogits,
    UserError,
    cause_of,
    of_request,
)
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.session import PREFILL_CHUNK
from spec_sdk.model.step_clock import HostClock, StepClock
from spec_sdk.ops import attempt, host_reads, read_decisions, read_tops
from spec_sdk.tree import TokenTree

HALF_PRECISION = "float16 overflows where bfloat16 and float32 do not: model.dtype"


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
        self._tapped = TappedStates()
        self._waiting: deque[Active] = deque()
        self._active: list[Active] = []
        self._free = list(range(slots))
        self._progress: list[Progress] = []
        self._time_shares = TimeShares()
        self._told = ToldEvents()
        self._in_drafter = CallOf("drafter", drafter.name)
        self._in_verifier = CallOf("verifier", verifier.name)
        self._begun_ahead: BegunCycle | None = None
        self._pass_ahead: PassAhead | None = None
        self._plain_steps = PlainSteps(drafter)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.requests > 0

    @property
    def requests(self) -> int:
        """Requests that have not ended."""
        return len(self._waiting) + len(self._active)

    def add(self, state: RequestState, emit: Emit = lambda event: None) -> None:
        """Serve a request from the next step on, as soon as a slot is free.

        ``emit`` gets its events: ``request_start`` at once, ``prefill``, ``cycle`` …, ``request_end``.
        """
        emit({"event": "request_start", "request": state.id, "prompt_tokens": state.prompt_length})
        state.target = self.target
        self._waiting.append(Active(state, emit, self.policy.for_request()))

    def cancel(self, request: int, reason: str = "interrupted") -> None:
        """End a request between steps; what was emitted stands. Does nothing if it has ended.

        ``reason``: the ``finish_reason`` of its last event. Raises what the drafter's ``finish`` fails with.
        """
        for active in [*self._waiting, *self._active]:
            if active.state.id == request:
                fault = self._leave(active)
                self._told.end(active, reason if fault is None else "error")
                self._told.emit()
                if fault is not None:
                    raise fault

    def run(self, state: RequestState, emit: Emit = lambda event: None) -> Iterator[list[int]]:
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
        self._progress = []
        try:
            self._admit()
            self._prefill()
            self._told.emit()
            cycle, self._begun_ahead = self._begun_ahead, None
            self._finish(cycle or self._begin())
            self._begin_next()
            self._told.emit()
        except BaseException:
            for active in [*self._active, *self._waiting]:
                self._end(active, "interrupted")
            with contextlib.suppress(Exception):
                # of two errors the first says more
                self._told.emit()
            raise
        return self._progress

    def _admit(self) -> None:
        """Give free slots to those that wait: of each, the one whose cache has most of the prompt."""
        while self._waiting and self._free:
            active = self._waiting.popleft()
            state, prompt = active.state, active.state.tokens[:-1]
            given = state.encoder_input
            shared = {slot: self._shared(slot, prompt, given) for slot in self._free}
            state.slot = max(self._free, key=lambda slot: (shared[slot], -slot))
            self._free.remove(state.slot)
            self._active.append(active)
            with self._ending([active]):
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
        active = next((active for active in self._active if not active.prefilled), None)
        if active is None:
            return
        with self._ending([active]):
            clock, began = self._clock, self._clock.mark()
            state, drafter = active.state, self.drafter
            # the pending token is the first tree's root
            done, prompt = self.target.length(state.slot), state.tokens[: state.prompt_length - 1]
            if chunk := prompt[done : done + PREFILL_CHUNK]:
                hidden = self.target.prefill(state.slot, chunk, drafter.taps)
                if drafter.taps:
                    self._tapped.append(state.slot, chunk, hidden)
            active.prefilled = done + len(chunk) == len(prompt)
            if not active.prefilled:
                active.prefill_s += clock.seconds(began, clock.mark())
                return
            # a drafter need not be prepared before it is asked
            drafts = self._budgets([active])[0].depth > 0
            drafter_s = self._start_drafting([active]) if drafts else None
            self._take_forced(active, ends=False)
            self._told.note(
                active,
                event="prefill",
                seconds=active.prefill_s + clock.seconds(began, clock.mark()),
                drafter_s=drafter_s,
                tokens=state.prompt_length - 1,
                draft=drafter.draft_name,
                **({} if active.encoder_s is None else {"encoder_s": active.encoder_s}),
                **({"kept": active.kept} if active.kept else {}),
            )

    def _start_drafting(self, requests: Sequence[Active]) -> float:
        """Start the drafter for them; the seconds that it took."""
        began = self._clock.mark()
        hidden = [self._tapped.of(active.slot) for active in requests] if self.drafter.taps else None
        with self._in_drafter:
            self.drafter.start([active.view for active in requests], hidden)
        for active in requests:
            active.drafting = True
        return self._clock.seconds(began, self._clock.mark())

    def _begin(self) -> BegunCycle:
        """Drafts, and the pass over them."""
        reads, marks = host_reads.total(), [self._clock.mark()]
        turns: list[Turn] = self._propose([active for active in self._active if active.prefilled])
        marks.append(self._clock.mark())
        ahead, self._pass_ahead, verdicts = self._pass_ahead, None, None
        taken = ahead is not None and ahead.hand_out(self.target, turns)
        if ahead is not None and taken:
            verdicts = ahead.verdicts
        else:
            turns, verdicts = self._score(turns)
        marks.append(self._clock.mark())
        for turn in turns:
            with self._ending([turn.active]):
                turn.read_tree()
        return BegunCycle(turns, verdicts, marks, host_reads.total() - reads, ahead, taken)

    def _begin_next(self) -> None:
        """Where the device works on while the host does other things, give it the next cycle's pass: what a step tells,
        and what is made of its tokens, is then no time that the device waits for. Not where a request is about to join.
        """
        joining = bool(self._waiting and self._free) or not all(active.prefilled for active in self._active)
        if joining or not self.target.one_launch or self._pass_ahead is not None:
            return
        cycle = self._begin()
        self._begun_ahead = cycle if cycle.turns else None

    def _finish(self, cycle: BegunCycle) -> None:
        """The verdicts, and what follows from them."""
        # since the pass there may have been time that is no stage's
        resumed = self._clock.mark()
        reads, turns, verdicts = host_reads.total(), self._going_on(cycle.turns), cycle.verdicts
        if verdicts is not None and self._plain_steps.go_on(turns):
            self._pass_ahead = PassAhead.launch(self.target, turns, verdicts, self.drafter.taps, self._clock, resumed)
        own = self._own_logits(turns)
        turns = self._verify(turns, own)
        # behind a pass ahead a mark would come after that; these verdicts were part of one before
        decided = self._clock.mark() if self._pass_ahead is None else resumed
        if self._pass_ahead is not None:
            self._pass_ahead.learn(turns)
        if own:
            turns = self._trace(turns, own)
        # the host's own time: what it commits, the device does while the next step begins
        began = time.perf_counter()
        turns = self._commit(turns)
        # where a pass ahead runs meanwhile, nothing waits for it
        recover_s = time.perf_counter() - began if self._pass_ahead is None else 0.0
        draft_s, score_s = cycle.stage_seconds(self._clock)
        seconds = StageSeconds(draft_s, score_s, self._clock.seconds(resumed, decided), recover_s)
        self._report(turns, seconds, cycle.reads + host_reads.total() - reads)

    def _propose(self, requests: Sequence[Active]) -> list[Turn]:
        """A tree for every request that is granted one; a root alone, a plain decoding step, for the others."""
        turns: list[Turn] = []
        with self._ending(requests):
            for active, budget in zip(requests, self._budgets(requests), strict=True):
                root, prefix = TokenTree.root_only(active.view.pending_token), self.target.length(active.slot)
                unscored = active.state.tokens[prefix:]
                if len(unscored) > 1 and (self.drafter.taps or not self.drafter.drafts_ahead):
                    budget = replace(budget, depth=0)
                turns.append(Turn(active, budget, prefix, root, taken=unscored[1:], above=unscored[:-1]))
        asked = [turn for turn in turns if turn.budget.depth > 0]
        if not asked:
            return turns
        name = f"drafter {self.drafter.name!r}"
        with self._ending([turn.active for turn in asked]):
            if late := [turn for turn in asked if not turn.active.drafting]:
                started_s = self._start_drafting([turn.active for turn in late])
                for turn in late:
                    turn.start_s = started_s / len(late)
            try:
                trees = self.drafter.propose([turn.active.view for turn in asked], [turn.budget for turn in asked])
            except Exception as error:
                self._in_drafter.note(error)
                named = error.request if isinstance(error, RequestError) else None
                of = [turn for turn in asked if named in (None, turn.active.state.id)]
                for turn in of:
                    self._check_mask(turn, [])
                if not (of and isinstance(cause_of(error), UnusableLogits)):
                    raise
                told = UserError(f"step {of[0].active.state.step + 1}, {name}: {error}")
                if named is None:
                    raise told from error
                raise RequestError(named, told) from told
            if fault := count_fault(trees, len(asked), "trees"):
                raise PluginFault(f"{name}: {fault}")
            for turn, tree in zip(asked, trees, strict=True):
                with self._ending([turn.active]):
                    pending, vocabulary = turn.active.view.pending_token, self.target.vocabulary
                    if fault := tree_fault(tree, pending, turn.budget, vocabulary):
                        raise PluginFault(f"{name}: {fault}")
                    turn.tree = tree
                    if turn.active.view.constrained:
                        self._constrain(turn)
        return self._going_on(turns)

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
        turns = self._going_on(turns)
        scored, ahead, in_pass = False, self._ahead(turns), None
        turns = self._going_on(turns)
        while turns and not scored:
            with self._ending([turn.active for turn in turns]):
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
            turns = self._going_on(turns)
        return turns, in_pass

    def _feed_forced(self, turn: Turn) -> None:
        """Make K and V of a long forced run in passes without logits; the tree's pass is then as wide as the tree."""
        with self._ending([turn.active]):
            turn.fed_hidden = self.target.prefill(turn.active.slot, turn.above, self.drafter.taps)
            if self.drafter.taps:
                self._tapped.append(turn.active.slot, turn.above, turn.fed_hidden)
            turn.above = []

    def _ahead(self, turns: Sequence[Turn]) -> dict[int, Ahead]:
        """What the verifier says by slot before the pass, where the pass may decide on all of them; else nothing."""
        ahead: dict[int, Ahead] = {}
        for turn in turns if self.target.one_launch else ():
            with self._ending([turn.active]):
                told = self.verifier.ahead(turn.tree, turn.active.view)
                if told is None:
                    # one read of the device for all: verdicts that need logits first are made together with the others
                    return {}
                ahead[turn.active.slot] = told
        return ahead

    def _own_logits(self, turns: Sequence[Turn]) -> dict[int, torch.Tensor]:
        """The target's, by slot, of requests that are to be told of them: what follows may write to the logits."""
        return {t.active.slot: t.scores.logits_NV.clone() for t in turns if t.active.asks_for_logits}

    def _verify(self, turns: list[Turn], own: Mapping[int, torch.Tensor]) -> list[Turn]:
        """The accepted path of every tree, and the tokens that it gives. ``own``: see :meth:`_own_logits`."""
        logits: dict[int, torch.Tensor] = {}
        for turn in turns:
            with self._ending([turn.active]):
                if fault := draws_fault(turn.tree, turn.logits_NV.shape[-1]):
                    raise PluginFault(f"drafter {self.drafter.name!r}: {fault}")
                logits[turn.active.slot] = penalised(turn.logits_NV, turn.tree, turn.active.view)
        turns = self._going_on(turns)
        if not turns:
            return turns
        # before the verdicts, which may be written over the logits; read after them, when the device is done
        asking, count = [turn for turn in turns if turn.active.drafting], self.drafter.target_top_k
        tops = [turn.active.view.ops.top_log_probabilities(logits[turn.active.slot], count) for turn in asking if count]
        with self._ending([turn.active for turn in turns]):
            verdicts = self._verdicts(turns, [logits[turn.active.slot] for turn in turns])
            for turn, verdict in zip(turns, verdicts, strict=True):
                with self._ending([turn.active]):
                    turn.verdict = followed(self._checked(verdict, turn), turn.active.state.unfollowed)
                    turn.tokens = clip(turn.verdict, turn.active.view)
            # a captured pass leaves them on the device, which is done now
            for turn in turns:
                turn.attention = turn.scores.attention
            if tops:
                for turn, top in zip(asking, read_tops(tops), strict=True):
                    turn.top = top
        turns = self._going_on(turns)
        if telling := [turn for turn in turns if turn.active.state.logprobs is not None]:
            self._tell_logprobs(telling, own)
        return self._going_on(turns)

    def _tell_logprobs(self, turns: Sequence[Turn], own: Mapping[int, torch.Tensor]) -> None:
        """Log-probabilities of what these requests' turns emit, by the target's ``own`` logits, a row for each node."""
        with self._ending([turn.active for turn in turns]):
            asked = [
                Asked(own[turn.active.slot][turn.rows], turn.emitted, turn.active.state.logprobs or 0) for turn in turns
            ]
            for turn, logprobs in zip(turns, read_logprobs(asked) if asked else (), strict=True):
                turn.logprobs = logprobs

    def _trace(self, turns: list[Turn], own: Mapping[int, torch.Tensor]) -> list[Turn]:
        """What the requests that ask for it are told of their trees. Its time is no stage's."""
        traced = [turn for turn in turns if turn.active.state.trace]
        with self._ending([turn.active for turn in traced]):
            asked = [Traced(t.scored, t.scored_verdict, own[t.active.slot], len(t.emitted)) for t in traced]
            for turn, trace in zip(traced, read_traces(asked) if asked else (), strict=True):
                turn.trace = trace
        return self._going_on(turns)

    def _verdicts(self, turns: Sequence[Turn], logits: Sequence[torch.Tensor]) -> Sequence[Verdict | Exception]:
        """One for each turn. A call that raises ends all of them: asked again, it would take other random numbers."""
        name = f"verifier {self.verifier.name!r}"
        made = {i: turn.pending for i, turn in enumerate(turns) if turn.pending is not None}
        left = [i for i in range(len(turns)) if i not in made]
        found: dict[int, Verdict | Exception] = {}
        for i, decision in zip(made, read_decisions([*made.values()]), strict=True):
            if isinstance(decision, Exception):
                found[i] = decision
            else:
                found[i] = attempt(self.verifier.decided, turns[i].tree, decision)
        if left:
            trees, views = [turns[i].tree for i in left], [turns[i].active.view for i in left]
            try:
                with self._in_verifier:
                    verdicts = self.verifier.verify(trees, [logits[i] for i in left], views)
            except RequestError as error:
                raise ValueError(f"{name}: {error}") from error
            if fault := count_fault(verdicts, len(left), "verdicts"):
                raise PluginFault(f"{name}: {fault}")
            found |= dict(zip(left, verdicts, strict=True))
        return [found[i] for i in range(len(turns))]

    def _checked(self, verdict: Verdict | Exception, turn: Turn) -> Verdict:
        """The verdict. Raises the exception that stands in its place, and PluginFault for one that cannot be used."""
        if isinstance(verdict, UnusableLogits):
            step, tree = turn.active.view.step + 1, turn.tree
            self._check_mask(turn, [tree.token_N[node] for node in tree.path_to(verdict.row)[1:]])
            raise UserError(f"step {step}, target: {verdict} (row = tree node; {HALF_PRECISION})") from verdict
        if isinstance(verdict, Exception):
            self._in_verifier.note(verdict)
            raise verdict
        if fault := verdict_fault(verdict, turn.tree, turn.scores.logits_NV.shape[-1]):
            raise PluginFault(f"verifier {self.verifier.name!r}: {fault}")
        return verdict

    def _check_mask(self, turn: Turn, path: Sequence[int]) -> None:
        """Raise PluginFault, as this request's error, if its constraint leaves no token after drafted tokens."""
        constraint, request = turn.active.state.constraint, turn.active.view
        if constraint is None:
            return
        row_1V = torch.zeros((1, self.target.vocabulary))
        of_request(request.id, constraint.apply, row_1V, request.tokens[request.prompt_length :], [path])
        if row_1V.isneginf().all():
            where = f"{request.new_tokens + len(path)} tokens of an answer"
            fault = PluginFault(f"{in_words(constraint)}: after {where} its mask leaves none that may follow")
            raise RequestError(request.id, fault) from fault

    def _commit(self, turns: list[Turn]) -> list[Turn]:
        """Keep the accepted paths, tell the drafter."""
        with self._ending([turn.active for turn in turns]):
            if turns:
                self.target.commit([turn.active.slot for turn in turns], [turn.rows for turn in turns])
            for turn in turns:
                if self.drafter.taps:
                    rows = [turn.scored.token_N[row] for row in turn.rows]
                    self._tapped.append(turn.active.slot, rows, turn.pass_hidden)
                turn.active.state.tokens.extend(turn.tokens)
                turn.active.state.unfollowed.clear()
                turn.active.state.step += 1
        told = [turn for turn in self._going_on(turns) if turn.active.drafting]
        with self._ending([turn.active for turn in told]), self._in_drafter:
            if told:
                tops = [turn.top for turn in told if turn.top is not None]
                if tops:
                    self.drafter.observe_scores([turn.active.view for turn in told], [turn.tree for turn in told], tops)
                hidden = [turn.path_hidden for turn in told]
                self.drafter.observe([turn.active.view for turn in told], [turn.tokens for turn in told], hidden)
        for turn in self._going_on(turns):
            if turn.active.view.constrained and self._finished(turn.active.view) is None:
                with self._ending([turn.active]):
                    turn.ending = self._take_forced(turn.active, ends=not turn.active.asks_for_logits)
        return self._going_on(turns)

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
            with self._in_drafter:
                self.drafter.observe_forced([request], [run])
        return run if at_end and ends else []

    def _report(self, turns: Sequence[Turn], seconds: StageSeconds, reads: int) -> None:
        """Tell what happened; requests that have ended leave."""
        for turn, event in zip(turns, cycle_events(turns, seconds, self._time_shares, reads), strict=True):
            active = turn.active
            self._told.note(active, **event)
            reason = self._finished(active.view)
            self._progress.append(Progress(active.state.id, turn.emitted, reason))
            if reason is not None:
                self._end(active, reason)

    def _budgets(self, requests: Sequence[Active]) -> list[Budget]:
        return granted_budgets(self.policy, requests, self.target.context)

    def _finished(self, request: Request) -> str | None:
        if request.new_tokens and request.tokens[-1] in request.stop_ids:
            return "stop"
        if request.new_tokens >= request.max_new_tokens or len(request.tokens) >= self.target.context:
            return "length"
        return None

    def _ending(self, requests: Sequence[Active]) -> _Ending:
        """An error inside ends these requests, or the one that it names, and no others."""
        return _Ending(self, requests)

    def _going_on(self, turns: Sequence[Turn]) -> list[Turn]:
        """Those whose request has not ended."""
        return [turn for turn in turns if not turn.active.ended]

    def _end(self, active: Active, reason: str, error: Exception | None = None) -> None:
        if active not in self._waiting and active not in self._active:
            return
        fault = self._leave(active)
        # of two errors the first says more
        if fault is not None and error is None:
            reason, error = "error", fault
        if error is not None:
            self._progress.append(Progress(active.state.id, [], reason, error))
        self._told.end(active, reason)

    def _leave(self, active: Active) -> Exception | None:
        """Give up its place, and say so to the drafter; what that fails with."""
        active.ended = True
        if active in self._waiting:
            self._waiting.remove(active)
            return None
        self._active.remove(active)
        self._free.append(active.slot)
        if self._begun_ahead is not None and not self._going_on(self._begun_ahead.turns):
            self._begun_ahead = None
        try:
            if active.drafting:
                with self._in_drafter:
                    self.drafter.finish([active.view])
        except Exception as fault:
            return fault
        return None


class _Ending:
    """Entered ten times in a step, for which a generator would take longer."""

    __slots__ = ("_requests", "_scheduler")

    def __init__(self, scheduler: Scheduler, requests: Sequence[Active]) -> None:
        self._scheduler, self._requests = scheduler, requests

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        named = error.request if isinstance(error, RequestError | ConstraintLimit) else None
        ended = [active for active in self._requests if named in (None, active.state.id)]
        for active in ended or self._requests:
            self._scheduler._end(active, "error", cause_of(error))
        return True
