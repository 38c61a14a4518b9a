"""The data check is `python -m tools.check`; this module only prints the new name."""

import sys

if __name__ == "__main__":
    print("python -m datasets.check is now python -m tools.check", file=sys.stderr)
    sys.exit(2)
