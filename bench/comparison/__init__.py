"""What dufs-core and other packages do with the same inputs, found by running them: docs/comparison.md."""
