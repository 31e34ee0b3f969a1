"""Several processes: groups with roles, collectives, the barrier at which a stop is agreed on, sharding of a policy."""
