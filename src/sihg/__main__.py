"""`python -m sihg`: the command, also where its script is not on the path."""

import sys

from sihg.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
