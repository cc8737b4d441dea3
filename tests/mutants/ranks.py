"""Ranks that do not miss a process that is gone."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PROCESSES = "plugins/backends/spec_sdk_backends/process_ranks.py"
MEMORY = "plugins/backends/spec_sdk_backends/shared_memory.py"
LIFELINES = "plugins/backends/spec_sdk_backends/lifelines.py"
OF_SILENCE = "tests/distributed/test_silent_peer.py"
KERNELS = "plugins/backends/spec_sdk_backends/native/source/ranks.h"
OF_KERNELS = "plugins/backends/spec_sdk_backends/native/ranks.py"
WHOLE_PASS = "plugins/backends/spec_sdk_backends/native/whole_pass.py"
OF_PASS = "tests/native/test_pass_of_ranks.py"
MAPPED = "plugins/backends/spec_sdk_backends/mapped_memory.py"
CHANNEL = "plugins/backends/spec_sdk_backends/peer_channel.py"
OF_MAPPED = "tests/distributed/test_mapped_memory.py"
OF_CHANNEL = "tests/distributed/test_peer_channel.py"
OF_MEMORY = "tests/distributed/test_shared_memory.py"
DECODER = "spec_sdk/model/tensor_parallel.py"
OF_RANKS = "tests/distributed/test_ranks.py::test_a_spread_decoder_computes_what_a_whole_one_does"
GROUPS = "spec_sdk/model/runners/speculative_groups.py"
OF_FAMILIES = "tests/distributed/test_families.py"
OF_SERVER = "tests/distributed/test_serving.py"
FOLLOWERS = "spec_sdk/parallel/waiting_followers.py"
RECURRENT = "plugins/backends/spec_sdk_backends/native/recurrent_decoder.py"

RANKS = (
    Mutant(
        "who leaves after its work is missed",
        LIFELINES,
        "        return not said",
        "        return True",
        (OF_SILENCE,),
    ),
    Mutant(
        "a rank that waits never looks whether the others are there",
        PROCESSES,
        "        if self._lifelines.is_cut():",
        "        if False:",
        (OF_SILENCE,),
    ),
    Mutant(
        "a rank that is stuck leaves its group, and waits for the operation that does not end",
        PROCESSES,
        "        if dist.is_initialized() and not self._is_stuck:",
        "        if dist.is_initialized():",
        (OF_SILENCE,),
    ),
    Mutant(
        "a closed lifeline is not looked at",
        LIFELINES,
        "return not self._ends or any([self._has_ended(key.fileobj) for key, _ in self._selector.select(0)])",
        "return not self._ends",
        (OF_SILENCE,),
    ),
    Mutant(
        "shared memory: one place for the messages of all rounds",
        MEMORY,
        "self._messages_2RB[self.number % 2]",
        "self._messages_2RB[0]",
        (OF_MEMORY,),
    ),
    Mutant(
        "shared memory: the last rank is not waited for",
        MEMORY,
        "        for rank in range(self.size):\n            self.patience",
        "        for rank in range(self.size - 1):\n            self.patience",
        (OF_MEMORY,),
    ),
    Mutant(
        "shared memory: a file without the token is taken",
        MAPPED,
        "nbytes) != token.encode():",
        "nbytes) is None:",
        (OF_MAPPED,),
    ),
    Mutant(
        "shared memory: who reached it does not ask whether all did",
        MAPPED,
        'if not all([hear(f"reached/{other}") for other in range(size)]):',
        "if file is None:",
        (OF_MAPPED,),
    ),
    Mutant(
        "shared memory: who waits does not look",
        MAPPED,
        "                self.check(waited_s)",
        "                pass",
        (OF_MEMORY,),
    ),
    Mutant(
        "shared memory: of a message in pieces the first is sent each time",
        MEMORY,
        "sent_B = mine_B[piece] if",
        "sent_B = mine_B[: piece.stop - piece.start] if",
        (OF_MEMORY,),
    ),
    Mutant(
        "a channel's ring is written over before it was read",
        CHANNEL,
        "room, at = RING - (written - self._numbers[_READ]), written % RING",
        "room, at = RING, written % RING",
        (OF_CHANNEL,),
    ),
    Mutant(
        "a channel: who waits does not send on",
        CHANNEL,
        "        _move(self._unsent, self._out.put)\n        _move(self._expected",
        "        _move(self._expected",
        (OF_CHANNEL,),
    ),
    Mutant(
        "a channel: a message is whole when its first piece is there",
        CHANNEL,
        "if count == length:",
        "if count:",
        (OF_CHANNEL,),
    ),
    Mutant(
        "a channel: a flush does not wait",
        CHANNEL,
        "self._left()[0] == 0",
        "self._left()[0] >= 0",
        (OF_CHANNEL,),
    ),
    Mutant(
        "kernels of ranks: one place for the messages of all rounds",
        KERNELS,
        "messages + (number % 2 * size + rank) * capacity",
        "messages + rank * capacity",
        (OF_PASS,),
    ),
    Mutant(
        "kernels of ranks: the last rank is not waited for",
        KERNELS,
        "other < size && !lost; other++)",
        "other < size - 1 && !lost; other++)",
        (OF_PASS,),
    ),
    Mutant(
        "kernels of ranks: who waits does not look",
        KERNELS,
        "if (look(now)) {",
        "if (false) {",
        (OF_PASS,),
    ),
    Mutant(
        "kernels of ranks: messages that Python sent are not counted",
        OF_KERNELS,
        "        self._structure.number = self._memory.number\n",
        "",
        (OF_PASS,),
    ),
    Mutant(
        "kernels of ranks: a message that is too long is written",
        WHOLE_PASS,
        "return min(most, CAPACITY // (decoder.config.hidden_size * decoder.dtype.itemsize))",
        "return most",
        (OF_PASS,),
    ),
    Mutant(
        "a pass of ranks has the logits of a rank's own tokens",
        WHOLE_PASS,
        "return h_BNM, hidden, self._spread.gathered(logits_BnW)",
        "return h_BNM, hidden, logits_BnW",
        (OF_PASS,),
    ),
    Mutant(
        "kernels of ranks: what a state gives is summed, though every rank has it whole",
        "plugins/backends/spec_sdk_backends/native/source/mixed_blocks.h",
        "given, whole, own);",
        "given, work, own);",
        (OF_PASS,),
    ),
    Mutant(
        "recurrent blocks of ranks: a message that is too long is written",
        RECURRENT,
        "h_BNM.nbytes <= CAPACITY",
        "h_BNM.nbytes > 0",
        (OF_PASS,),
    ),
    Mutant(
        "ranks: what a state gives is summed, though every rank has it whole",
        DECODER,
        "if not block.attends:\n            return self.own.project(layer, o_BNHD)",
        "if not block.attends:\n            return self.group.all_reduce(self.own.project(layer, o_BNHD))",
        (OF_RANKS,),
    ),
    Mutant(
        "ranks: norms of all heads are of a rank's heads alone",
        DECODER,
        "squares_BN2 = self.group.all_reduce(torch.stack(own, -1))",
        "squares_BN2 = torch.stack(own, -1) * self.group.size",
        (OF_RANKS,),
    ),
    Mutant(
        "ranks: heads of K that several ranks have count as often in their norm",
        DECODER,
        "x.square().sum((2, 3)) / copies for",
        "x.square().sum((2, 3)) for",
        (OF_RANKS,),
    ),
    Mutant(
        "a server: the other processes hear nothing while nobody asks",
        FOLLOWERS,
        "while not done.wait(min(EVERY_S, ranks.patience_s / 4)):",
        "while not done.wait():",
        (OF_SERVER,),
    ),
    Mutant(
        "behind a call that failed on the leader another is announced",
        "spec_sdk/parallel/spread_session.py",
        "            self.failure = error\n",
        "            pass\n",
        ("tests/distributed/test_spread_session.py",),
    ),
    Mutant(
        "a server: the other processes end when they are told to",
        "spec_sdk/tasks/serve.py",
        "signal.signal(number, signal.SIG_IGN)",
        "signal.signal(number, signal.SIG_DFL)",
        (OF_SERVER,),
    ),
    Mutant(
        "a server that lost a process ends as if it had been told to",
        "spec_sdk/tasks/serve.py",
        "            if failures:\n                raise failures[0]\n",
        "            if failures:\n                return 0\n",
        (OF_SERVER,),
    ),
    Mutant(
        "device groups: who receives leaves the state of a recurrent layer as it was",
        GROUPS,
        "        decoder.attend(layer, q_BNHD, work)\n\n    def _set",
        "        \n\n    def _set",
        (OF_FAMILIES,),
    ),
)
