"""``python -m dufs_core.gradcheck``."""

import sys

from dufs_core.cli.gradcheck import main

if __name__ == "__main__":
    sys.exit(main())
