"""From one mu to the next: optimisers, the training loop and what watches it."""
