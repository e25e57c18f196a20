"""The model: its identity, its graph's features, inputs for it."""
