"""The wire between a rollout and its simulator hosts: frames, who is let in, connections that break, clocks."""
