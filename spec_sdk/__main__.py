"""``python -m spec_sdk``."""

import os
import sys

from spec_sdk.cli.ending import end_at_last
from spec_sdk.cli.starting import end_at_once, open_closed_streams
from spec_sdk.ranks import launched_processes, launched_rank


def main() -> int:
    """Run the command line; an interrupt is status 130 even while modules are still being imported."""
    open_closed_streams()
    if "WORLD_SIZE" in os.environ:
        # of a process that ends, or is not there, torch's stores say so with a C++ stack; we say it in a line
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL" if launched_rank() else "ERROR")
    else:
        # of several processes all must hear of it; the leader tells them
        end_at_once()
    try:
        from spec_sdk import app

        status = app.main()
    except KeyboardInterrupt:
        status = 130
    if launched_processes() > 1:
        end_at_last(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
