"""The operations of the concrete autoencoder, forward and backward."""
