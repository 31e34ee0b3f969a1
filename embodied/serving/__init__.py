"""The policy server: answers observations that arrive over a network. No simulator is imported."""
