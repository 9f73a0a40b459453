"""The command line; `dufs_core.cli.main` is the entry point."""
