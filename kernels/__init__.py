"""Compiled kernels. Installed as ``dufs_core.kernels``; compiled at first use, never at import of dufs_core."""
