"""What each subcommand of `dufs-core` does; `dufs_core.cli` is the way in."""
