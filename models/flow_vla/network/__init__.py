"""The network: vision tower, trunk, expert, and what leads in and out of them."""
