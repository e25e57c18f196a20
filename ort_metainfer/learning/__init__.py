"""What trials teach: records of them, what is known of a graph on other devices, models trained on them."""
