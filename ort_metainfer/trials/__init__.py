"""Trials on the real device, in processes of their own, and the gates that judge them."""
