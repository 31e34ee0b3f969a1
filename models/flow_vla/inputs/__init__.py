"""What the network is given: pictures, texts, normalised states and actions."""
