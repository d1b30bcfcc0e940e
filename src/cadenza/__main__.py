"""`python -m cadenza`: the same as the `cadenza` command."""

from cadenza.cli.main import main

if __name__ == "__main__":
    main()
