"""Compiles a kernel for an NVIDIA architecture without a GPU, and looks at the machine code.

One line per kernel goes to stdout: ``case name code=… shared=… registers=… stack=… local=… overlaps=… full_waits=…
mmas=… wgmmas=… fmas=… loop=… layout=…``.
``overlaps``: places that wait for some of the asynchronous copies while others go on; ``full_waits``: places that wait
for all of them, the ends of loops among them; ``local``: loads and stores of local memory, where registers are spilled;
``mmas``, ``wgmmas``, ``fmas``: instructions that multiply tiles, those of sm_90 that take 64 rows, and fused ones of
single numbers; ``loop``: instructions of the longest loop; ``layout``: a number that stands for how products lie among
the threads, and in which order they are added up.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton  # type: ignore[import-untyped]
from triton import compile as triton_compile
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compile_and_print(
    kernel: Any,
    constants: dict[str, Any],
    types: dict[str, str],
    warps: int,
    stages: int,
    capability: int,
    case: str,
    **options: Any,
) -> None:
    """``types``: of the arguments that are neither 32-bit integers nor, if their name ends so, pointers to them.
    ``options``: of the compiler, besides warps and stages.
    """
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*i32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    # as a launch finds them: tensors and rows begin at multiples of 16 bytes, where the kernel is to know it
    aligned = [["tt.divisibility", 16]]
    attrs = {
        (parameter.num,): aligned
        for parameter in kernel.params
        if parameter.name not in constants
        and (parameter.name.startswith("stride_") or parameter.name.endswith("_ptr") or parameter.name == "V")
        and not parameter.do_not_specialize | parameter.do_not_specialize_on_alignment
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    options |= {"num_warps": warps, "num_stages": stages}
    done = triton_compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    facts = {"code": len(done.asm["cubin"]), "shared": done.metadata.shared, **resources(done.asm["cubin"])}
    facts["overlaps"] = len(re.findall(r"async_wait .*num = [1-9]", done.asm["ttgir"]))
    facts["full_waits"] = len(re.findall(r"async_wait .*num = 0", done.asm["ttgir"]))
    facts |= {f"{name}s": len(re.findall(rf"\b{name}\b", done.asm["ptx"])) for name in ("mma", "wgmma", "fma")}
    # how products and the sums over them are laid out among the threads, and in which order they are added up
    layouts = sorted(re.findall(r"#ttg\.nvidia_mma<.*>", done.asm["ttgir"]))
    layouts += sorted(set(re.findall(r"kWidth = \d+", done.asm["ttgir"])))
    facts["layout"] = zlib.crc32("".join(layouts).encode())
    print(case, kernel.__name__, *(f"{name}={value}" for name, value in facts.items()))


def resources(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, bytes of its stack, and how many instructions read or write local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = _output("cuobjdump", "-res-usage", file.name)
        code = _output("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, f"cuobjdump says nothing of registers: {told[:500]}"
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "local": len(re.findall(r"\b(?:LDL|STL)\b", code)),
        "loop": max((end - first for first, end in loops_of(code)), default=0),
    }


def loops_of(code: str) -> list[tuple[int, int]]:
    """Of what nvdisasm prints, the numbers of each loop's first and last instruction."""
    instruction, labels, found = 0, dict[str, int](), list[tuple[int, int]]()
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = instruction
        if re.search(r"/\*[0-9a-f]{4,}\*/\s+\S", line):
            instruction += 1
            back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
            if back and back[1] in labels:
                found.append((labels[back[1]], instruction))
    # an instruction that leads to itself ends the code
    return [(first, end) for first, end in found if end - first > 1]


def _output(tool: str, *arguments: str) -> str:
    done = subprocess.run([str(TOOLS / tool), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{tool}: {done.stderr[:500]}"
    return done.stdout


Compiled = dict[str, list[tuple[str, dict[str, int]]]]
"""By case: name and facts of each kernel that was compiled, in order."""


def compiled_by(module: str, cases: Sequence[str], cache: Path) -> Compiled:
    """What one of the scripts beside this one prints of ``cases``: in a process of its own, since the interpreter, once
    on, stays on. ``cache``: where triton keeps what it compiles.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-m", f"tests.kernels.{module}", *cases]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    found: Compiled = {case: [] for case in cases}
    for case, kernel, *facts in (line.split() for line in done.stdout.splitlines()):
        found[case].append((kernel, {name: int(value) for name, _, value in (fact.partition("=") for fact in facts)}))
    return found
