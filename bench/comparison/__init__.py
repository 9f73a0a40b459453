"""What dufs-core and other packages do with the same inputs: every cell of docs/comparison.md, found by running them."""
