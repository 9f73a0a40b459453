"""The verification of this library's own gradients."""
