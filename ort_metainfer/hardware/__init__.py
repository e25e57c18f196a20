"""The hardware: what there is, what of it this process may use, what else it is doing."""
