"""``python -m spec_sdk``."""

import os
import sys


def main() -> int:
    """Run the command line; an interrupt is status 130 even while modules are still being imported."""
    # before torch loads its threads: threads that spin at every barrier make a busy machine many times slower
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "WORLD_SIZE" in os.environ:
        # of a process that ends torch's stores say so with a C++ stack; we say it in a line
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from spec_sdk import app

        return app.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
