"""`python -m groupwise`: the `groupwise` command of this interpreter."""

from groupwise.cli import main

if __name__ == "__main__":
    main()
