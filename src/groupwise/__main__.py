"""`python -m groupwise`: the `groupwise` command of this interpreter."""

from runpy import run_module

if __name__ == "__main__":
    run_module("groupwise.cli", run_name="__main__", alter_sys=True)
