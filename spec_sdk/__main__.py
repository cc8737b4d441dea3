"""``python -m spec_sdk``."""

import sys


def main() -> int:
    """Run the command line; an interrupt is status 130 even while modules are still being imported."""
    try:
        from spec_sdk import app

        return app.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
