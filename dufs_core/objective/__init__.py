"""The loss and its gradient: the operations, the chain that orders them, and the engines that evaluate it."""
