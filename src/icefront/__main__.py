"""`python -m icefront` is the command `icefront`."""

from icefront.cli import main

if __name__ == "__main__":
    main()
