"""The harness's own command line, which knows the model ``spec_sdk`` then: ``python -m spec_sdk.evaluation run …``.

Exit status as that of the harness, and 2 with one line for what spec-sdk refuses.
"""

from __future__ import annotations

import sys

from spec_sdk.errors import UserError


def main() -> int:
    """Register the model, and hand the command line on."""
    try:
        from spec_sdk.evaluation.harness import require

        require()
        from lm_eval.__main__ import cli_evaluate

        import spec_sdk.evaluation.language_model  # noqa: F401

        cli_evaluate()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
