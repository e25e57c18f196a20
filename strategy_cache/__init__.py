"""What was decided, kept on disk: the store, the lock around a decision, the strategy files people edit, manifests."""
