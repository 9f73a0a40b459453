"""python -m dufs_core: the command line."""

import sys

from dufs_core.cli.main import main

sys.exit(main())
