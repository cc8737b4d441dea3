"""``python -m spec_sdk``."""

import sys

from spec_sdk.app import main

if __name__ == "__main__":
    sys.exit(main())
