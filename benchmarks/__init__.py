"""Scripts that measure, run from a checkout: ``python -m benchmarks.<name>``. One that is not installed will do."""

import sys
from pathlib import Path

# behind what is installed
sys.path += [str(plugins) for plugins in sorted((Path(__file__).parents[1] / "plugins").iterdir()) if plugins.is_dir()]
