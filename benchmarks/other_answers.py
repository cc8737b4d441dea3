"""The target's answers to the prompts that a benchmark leaves out, as texts of a datastore.

    python -m benchmarks.other_answers --prompts spec_bench.jsonl --count 12 --output others.jsonl model.dtype=bfloat16

`task=bench prompt_file=spec_bench.jsonl prompt_limit=12` asks 12 prompts; this answers all others, the first turn of
each, greedily, and writes one text per line. `task=build_datastore task.texts=others.jsonl` makes a datastore of them
that has none of the benchmark's prompts or answers.
"""

from __future__ import annotations

import json
import sys

from spec_sdk import Engine
from spec_sdk.bench.conversations import read_conversations
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.scripts import run_script, script_parser
from spec_sdk.files import write_atomically


def main() -> int:
    parser = script_parser(__doc__, count=12, new_tokens=128)
    add_output(parser, required=True, help_text="the .jsonl to write")
    options = parser.parse_intermixed_args()
    file = str(options.prompts)
    asked = {c.id for c in read_conversations(file, None, options.count).conversations}
    others = [c.turns[0] for c in read_conversations(file).conversations if c.id not in asked]
    engine = Engine.from_pipeline("suffix", overrides=options.overrides)
    lines = []
    for begin in range(0, len(others), 24):
        for answer in engine.generate(others[begin : begin + 24], max_new_tokens=options.new_tokens):
            if answer.error is None and answer.text.strip():
                lines.append(json.dumps({"text": answer.text}, ensure_ascii=False) + "\n")
        print(f"{begin + len(others[begin : begin + 24])}/{len(others)} answered", file=sys.stderr, flush=True)
    write_atomically(options.output, "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
