"""What each subcommand of `dufs-core` does; `dufs_core.cli.main` is the way in."""
