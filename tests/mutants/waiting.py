"""Threads that spin where they should sleep, or sleep where they should spin."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHOICE = "plugins/backends/spec_sdk_backends/thread_waiting.py"
RUNTIME = "plugins/backends/spec_sdk_backends/openmp_runtime.py"
USE = "plugins/backends/spec_sdk_backends/core_use.py"
OF_WAITING = "tests/model/test_thread_waiting.py"
OF_USE = "tests/model/test_core_use.py"

WAITING = (
    Mutant(
        "a process takes its own work for that of others",
        USE,
        "own, idle = self.own_s - before.own_s, self.idle_s - before.idle_s",
        "own, idle = 0.0, self.idle_s - before.idle_s",
        (OF_USE,),
    ),
    Mutant(
        "the nearest control group's quota counts, not the least",
        USE,
        "within[: within.index(root) + 1] if root in within",
        "within[:1] if root in within",
        (OF_USE,),
    ),
    Mutant(
        "one quiet look is enough to spin again",
        CHOICE,
        "self._quiet_looks < QUIET_LOOKS)",
        "self._quiet_looks < 1)",
        (OF_WAITING,),
    ),
    Mutant(
        "cores that the threads leave free count as theirs",
        CHOICE,
        "others > cpus - threads + TAKEN",
        "others > TAKEN",
        (OF_WAITING,),
    ),
    Mutant(
        "looks take as much of the time as they like",
        CHOICE,
        "max(LOOK_S, (ended - began) / LOOKS_COST)",
        "LOOK_S",
        (OF_WAITING,),
    ),
    Mutant(
        "what others did while nothing was computed counts",
        CHOICE,
        "now.at_s - self._before.at_s > PAUSE * self._until_next_s",
        "False",
        (OF_WAITING,),
    ),
    Mutant(
        "where every pass is long nothing is looked at",
        CHOICE,
        "not self._begun_anew and ",
        "",
        (OF_WAITING,),
    ),
    Mutant(
        "the option wins over the environment",
        CHOICE,
        "self._runtime = None if self._chosen_by else find_runtime()",
        "self._runtime = find_runtime()",
        (OF_WAITING,),
    ),
    Mutant(
        "as many threads as there are cores, where it takes one more",
        RUNTIME,
        "CPUS_AT_START + 1 - torch.get_num_threads()",
        "CPUS_AT_START - torch.get_num_threads()",
        (OF_WAITING,),
    ),
    Mutant(
        "the threads that loaded a model keep those that run it from spinning",
        RUNTIME,
        "self._pause(PAUSE_SOFT)",
        "pass",
        (OF_WAITING,),
    ),
    Mutant(
        "a pass does not look after its threads",
        "spec_sdk/model/torch_executor.py",
        "        self.ops.before_pass()\n        if self._whole_pass",
        "        if self._whole_pass",
        (OF_WAITING,),
    ),
)
