"""Checkers of gradients on the same right and faulty backwards: faults found, false alarms, seconds.

See docs/gradient-guide.md for the checker of this library, and __main__.py for the command.
"""
