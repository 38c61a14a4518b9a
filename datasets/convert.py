"""The converter is `python -m tools.convert`; this module only prints the new name."""

import sys

if __name__ == "__main__":
    print("python -m datasets.convert is now python -m tools.convert", file=sys.stderr)
    sys.exit(2)
